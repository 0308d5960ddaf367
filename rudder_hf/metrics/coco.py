"""COCO annotation files and caption files, read with plain `json` and checked.

```python
data = read_coco("instances_val2014.json", "captions_val2014.json")
data.objects[139]  # ('potted plant', 'tv', ...): categories in the file's order
captions = read_captions_file("answers.jsonl")  # [Caption(139, 'A room with ...'), ...]
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..runtime.errors import InputError, listed

PathLike = str | Path
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True)
class CocoData:
    """Annotations of a set of images. Every image is a key of all three dictionaries."""

    files: dict[int, str]  # file names; empty where no file lists the image under "images"
    objects: dict[int, tuple[str, ...]]  # categories, crowds included, each once, in the order of the file
    references: dict[int, tuple[str, ...]]  # reference captions
    categories: tuple[str, ...]

    @property
    def ids(self) -> list[int]:
        """Return the image ids, sorted."""
        return sorted(self.files)


class Caption(NamedTuple):
    """A generated caption of an image."""

    image_id: int
    text: str


def image_id(value: object, where: str = "image_id") -> int:
    """Return an image id as a whole number; text of digits is accepted, because programs often write ids so."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value)
    raise InputError(f"{where} is {value!r}; give a whole number such as 139 or its digits as text")


def _read_text(path: PathLike) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _parsed(text: str, where: object) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON ({error}); is the file complete?") from error


def _checked(rows: list[Any], fields: Sequence[str], place: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return the rows, each of which must have all of these fields; `place` says where a row stands, for errors."""
    for number, row in enumerate(rows):
        missing = [name for name in fields if not isinstance(row, dict) or name not in row]
        if missing:
            raise InputError(f"{place(number)} lacks {listed(missing)}; every entry needs {listed(fields)}")
    return rows


def _rows(content: Any, key: str, fields: Sequence[str], path: PathLike) -> list[dict[str, Any]]:
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise InputError(f"{path} has no list {key!r}; give a COCO file such as instances_val2014.json")
    return _checked(rows, fields, lambda number: f"{path}: {key}[{number}]")


def read_coco(instances: PathLike, captions: PathLike | None = None) -> CocoData:
    """Read `instances_*.json` and, if given, `captions_*.json`.

    Without captions, ground truth is what the instances say; CHAIR as published needs both.
    """
    content = _parsed(_read_text(instances), instances)
    names = {row["id"]: row["name"] for row in _rows(content, "categories", ("id", "name"), instances)}
    files: dict[int, str] = {}
    _add_images(content, instances, files)
    objects: dict[int, dict[str, None]] = {}
    for number, row in enumerate(_rows(content, "annotations", ("image_id", "category_id"), instances)):
        where = f"{instances}: annotations[{number}]"
        if row["category_id"] not in names:
            raise InputError(f"{where} has category_id {row['category_id']!r}, which 'categories' does not define")
        image = image_id(row["image_id"], f"{where}.image_id")
        objects.setdefault(image, {})[names[row["category_id"]]] = None
    references = {} if captions is None else _read_references(captions, files)
    everything = {*files, *objects, *references}
    return CocoData(
        files={i: files.get(i, "") for i in everything},
        objects={i: tuple(objects.get(i, ())) for i in everything},
        references={i: tuple(references.get(i, ())) for i in everything},
        categories=tuple(dict.fromkeys(names.values())),
    )


def _add_images(content: Any, path: PathLike, files: dict[int, str]) -> None:
    for number, row in enumerate(_rows(content, "images", ("id", "file_name"), path)):
        files.setdefault(image_id(row["id"], f"{path}: images[{number}].id"), row["file_name"])


def _read_references(path: PathLike, files: dict[int, str]) -> dict[int, list[str]]:
    content = _parsed(_read_text(path), path)
    _add_images(content, path, files)
    references: dict[int, list[str]] = {}
    for number, row in enumerate(_rows(content, "annotations", ("image_id", "caption"), path)):
        if not isinstance(row["caption"], str):
            raise InputError(f"{path}: annotations[{number}].caption is {row['caption']!r}; it has to be text")
        image = image_id(row["image_id"], f"{path}: annotations[{number}].image_id")
        references.setdefault(image, []).append(row["caption"])
    return references


def read_json_rows(path: PathLike, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Read the entries of a JSON list or of a JSONL file, each with these fields."""
    text = _read_text(path)
    if text.lstrip().startswith("["):
        rows = _parsed(text, path)
    else:
        lines = enumerate(text.split("\n"), start=1)
        rows = [_parsed(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    return _checked(rows, fields, lambda number: f"{path}: entry {number + 1}")


def read_captions_file(path: PathLike) -> list[Caption]:
    """Read generated captions from a JSON list or JSONL file of `{"image_id": 139, "caption": "..."}`."""
    captions = []
    for number, row in enumerate(read_json_rows(path, ("image_id", "caption")), start=1):
        if not isinstance(row["caption"], str):
            raise InputError(f"{path}: entry {number}: caption is {row['caption']!r}; it has to be text")
        captions.append(Caption(image_id(row["image_id"], f"{path}: entry {number}: image_id"), row["caption"]))
    return captions
