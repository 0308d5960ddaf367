"""The pictures of the README: drawn again, they are the stored ones, and the shown output stays word for word."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")
from benchmarks.embedded import pictures


@pytest.mark.slow
def test_the_pictures_are_those_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, before = pictures.OUT, pictures.README.read_text()
    shutil.copy(pictures.README, tmp_path / "README.md")
    monkeypatch.setattr(pictures, "README", tmp_path / "README.md")
    monkeypatch.setattr(pictures, "OUT", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["pictures.py"])
    pictures.main()
    assert (tmp_path / "README.md").read_text() == before
    drawn = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert {"answers-dark.png", "answers-light.png"} <= set(drawn) <= {path.name for path in stored.iterdir()}
    for name in drawn:
        with Image.open(tmp_path / "images" / name) as new, Image.open(stored / name) as old:
            assert (new.size, getattr(new, "text", {})) == (old.size, getattr(old, "text", {}))
