"""JSON as the types that it was written from: what fits comes back as it was, what does not is told by its place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

import pytest

from rudder_hf.runtime.records import from_json


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    name: str
    at: tuple[float, float]
    weight: float | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Drawing:
    """A dataclass of others."""

    points: dict[str, list[Point]]
    closed: bool
    more: Any = None


class Options(TypedDict, total=False):
    """A dictionary whose keys may be absent."""

    size: int


class Job(Options):
    """A dictionary with a key that may not."""

    drawing: Drawing


DRAWING = Drawing({"a": [Point("p", (1, 2.5)), Point("q", (0.0, 1.0), 2.0, ["x"])], "b": []}, True, {"any": [1]})


def test_what_was_written_is_read_back() -> None:
    written = json.loads(json.dumps(asdict(DRAWING)))
    assert from_json(Drawing, written) == DRAWING
    assert from_json(Job, {"drawing": written, "else": 1}) == {"drawing": DRAWING, "else": 1}
    assert from_json(Point, {"name": "p", "at": [1, 2.5]}) == Point("p", (1, 2.5))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Job, None, "it is null, but has to be an object"),
        (Job, {"drawing": {}}, "drawing lacks points, closed"),
        (Job, {"size": "3"}, "it lacks drawing"),
        (Options, {"size": True}, "size is true, but has to be a whole number"),
        (Point, {"name": "p", "at": [1]}, r"at is \[1\], but has to be a list of 2"),
        (Point, {"name": "p", "at": [1, 2], "weight": "3"}, 'weight is "3", but has to be a number or null'),
        (Point, {"name": "p", "at": [1, 2], "tags": ["x", 3]}, r"tags\[1\] is 3, but has to be a text"),
        (Point, {"name": "p", "at": [1, 2], "y": 3, "x": 3}, "it has x, y, which is not known"),
        (Drawing, {"points": {"a": {}}, "closed": True}, "points.a is {}, but has to be a list"),
        (Drawing, {"points": {}, "closed": None}, "closed is null, but has to be true or false"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(kind, value)
