"""Objects that a caption names although they are not in the picture."""

from __future__ import annotations

import re
from pathlib import Path

from .chair import ground_truth
from .coco import read_coco
from .mention_spans import Span, absent, mentions

__all__ = ["MARK", "Span", "absent", "annotations_beside", "marked", "mentions", "objects_by_file"]

MARK = "(!)"


def marked(text: str, present: frozenset[str] | None) -> str:
    """The text with a mark behind each object that is not in the picture; unchanged if that is not known."""
    if present is None:
        return text
    for span in reversed(absent(text, present)):
        text = text[: span.stop] + MARK + text[span.stop :]
    return text


def objects_by_file(annotations: Path) -> dict[str, frozenset[str]]:
    """File name -> categories in the picture, from a COCO instances file."""
    data = read_coco(annotations)
    truth = ground_truth(data, "pattern")
    return {name: truth[image] for image, name in data.files.items()}


def annotations_beside(picture: Path) -> Path | None:
    """The COCO annotations that lie beside a picture's folder, as `rudder_hf.scenes.coco` writes them."""
    match = re.fullmatch(r"scenes_(\w+)_\d+\.png", picture.name)
    if match is None:
        return None
    for folder in (picture.parent / "annotations", picture.parent.parent / "annotations"):
        path = folder / f"instances_{match.group(1)}.json"
        if path.is_file():
            return path
    return None
