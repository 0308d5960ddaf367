"""Reading COCO annotations and caption files: the real form, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.metrics.coco import Caption, read_captions_file, read_coco
from rudder_hf.runtime.errors import InputError


def instances() -> dict[str, Any]:
    return {
        "images": [{"id": 5, "file_name": "five.jpg"}, {"id": 3, "file_name": "three.jpg"}],
        "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"image_id": 5, "category_id": 18, "iscrowd": 0},
            {"image_id": 5, "category_id": 1, "iscrowd": 1},
            {"image_id": "5", "category_id": 18, "iscrowd": 0},
        ],
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_objects_keep_the_order_of_the_file_and_crowds_count(tmp_path: Path) -> None:
    data = read_coco(write(tmp_path / "i.json", instances()))
    assert data.objects == {5: ("dog", "person"), 3: ()}
    assert data.references == {5: (), 3: ()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": None}, "no list 'annotations'"),
        ({"images": {}}, "no list 'images'"),
        ({"categories": [{"id": 1}]}, r"categories\[0\] lacks name"),
        ({"annotations": [{"category_id": 1}]}, r"annotations\[0\] lacks image_id"),
        ({"annotations": [{"image_id": 5, "category_id": 99}]}, "category_id 99, which 'categories' does not define"),
        ({"annotations": [{"image_id": "x", "category_id": 1}]}, r"annotations\[0\].image_id is 'x'"),
        ({"images": [{"id": 1}]}, r"images\[0\] lacks file_name"),
    ],
)
def test_files_that_lack_something_are_refused_by_place(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_coco(write(tmp_path / "i.json", {**instances(), **change}))


@pytest.mark.parametrize("content", ['{"images": [', "[1, 2]", "null", "", None])
def test_files_of_another_form_or_none(tmp_path: Path, content: str | None) -> None:
    with pytest.raises(InputError, match=r"i\.json"):
        read_coco(tmp_path / "i.json" if content is None else write(tmp_path / "i.json", content))


def test_captions_from_lists_and_lines(tmp_path: Path) -> None:
    rows = [{"image_id": 1, "caption": "a dog\u2028and a cat"}, {"image_id": "02", "caption": ""}]
    expected = [Caption(1, "a dog\u2028and a cat"), Caption(2, "")]
    assert read_captions_file(write(tmp_path / "a.json", rows)) == expected
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    assert read_captions_file(write(tmp_path / "a.jsonl", lines)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"image_id": 1, "caption": "a"}\n{"image_id": 2', "line 2 is not valid JSON"),
        ('{"image_id": 1}', "entry 1 lacks caption"),
        ('{"image_id": 1, "caption": null}', "caption is None"),
        ('{"image_id": null, "caption": "a"}', "image_id is None"),
        ("[3]", "entry 1 lacks image_id, caption"),
    ],
)
def test_caption_files_with_faults(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_captions_file(write(tmp_path / "c.jsonl", content))
