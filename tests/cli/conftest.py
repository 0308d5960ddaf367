"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.toy import toy_model, toy_processor


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without settings and its processor, on disk."""
    path = tmp_path_factory.mktemp("model")
    toy_model(seed=1).save_pretrained(path)
    toy_processor().save_pretrained(path)
    return path
