"""What the tests of evaluation need from elsewhere: published data beside the checkout, and nltk with its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf.metrics.chair import parse
from rudder_hf.runtime.errors import InputError

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published data are not beside the checkout")


def wordnet_missing() -> str | None:
    """Why CHAIR's wordnet lineage cannot be tested here, or None: nltk is on PyPI, its data only on GitHub."""
    try:
        parse("a dog", "wordnet")
    except InputError as error:
        return f"the wordnet lineage was not tested: {error}; PyPI has nltk, but its data come from GitHub alone"
    return None


def skip_without_wordnet(lineage: str) -> None:
    """Skip a test of the wordnet lineage where it cannot run."""
    if lineage == "wordnet" and (reason := wordnet_missing()):
        pytest.skip(reason)
