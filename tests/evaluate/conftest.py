"""What the tests of evaluation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.evaluating import loaded


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model and its processor on disk, without settings."""
    folder = tmp_path_factory.mktemp("model")
    loaded().model.save_pretrained(folder)
    loaded().processor.save_pretrained(folder)
    return folder
