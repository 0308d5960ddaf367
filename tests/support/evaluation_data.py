"""Where the tests of evaluation find published data, if it lies beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published data are not beside the checkout")
