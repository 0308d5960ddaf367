"""Values of JSON files as the types that they were written from, checked all the way down.

A damaged file is then told by what is wrong in it, and not by whatever fails later.

```python
from_json(dict[str, MetricValue], {"chair_s": {"label": 3, ...}})
# ValueError: chair_s.label is 3, but has to be a text
```
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
_WORDS |= {list: "a list", Sequence: "a list", tuple: "a list", dict: "an object"}


def from_json(kind: Any, value: Any, place: str = "") -> Any:
    """A value that was read from JSON, as the type that it was written from.

    Args:
        kind: `Any`, `str`, `int`, `float`, `bool`, `None`, lists, tuples and dictionaries of these, unions of them,
            dataclasses, and typed dictionaries, which may have more keys than they name.
        value: What was read.
        place: Where it stands in the file, for errors.

    Returns:
        The value; dataclasses and tuples are made of what JSON has for them.

    Raises:
        ValueError: It is something else; the message says where and what.
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        inner = [part for part in parts if part is not NoneType]
        if len(inner) == 1 and isinstance(value, (dict, list)):
            return from_json(inner[0], value, place)  # whose error says what is wrong inside
        for part in parts:
            with suppress(ValueError):
                return from_json(part, value, place)
    elif origin in (list, Sequence) and isinstance(value, list):
        return [from_json(parts[0], entry, f"{place}[{number}]") for number, entry in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(from_json(part, entry, place) for part, entry in zip(parts, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        return {name: from_json(parts[1], entry, _inside(place, name)) for name, entry in value.items()}
    elif is_typeddict(kind) and isinstance(value, dict):
        return {**value, **_fields(kind, value, kind.__required_keys__, place)}
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        named = dataclasses.fields(kind)
        unknown = sorted(set(value) - {field.name for field in named})
        if unknown:
            raise ValueError(f"{place or 'it'} has {', '.join(unknown)}, which is not known")
        required = [field.name for field in named if field.default is field.default_factory is dataclasses.MISSING]
        return kind(**_fields(kind, value, required, place))  # type: ignore[operator]
    elif type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{place or 'it'} is {shortened(value)}, but has to be {_described(kind)}")


def _fields(kind: Any, value: dict[str, Any], required: Any, place: str) -> dict[str, Any]:
    hints = _hints(kind)
    missing = [name for name in hints if name in required and name not in value]
    if missing:
        raise ValueError(f"{place or 'it'} lacks {', '.join(missing)}")
    return {name: from_json(hints[name], value[name], _inside(place, name)) for name in hints if name in value}


_hints = cache(get_type_hints)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _described(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_described(part) for part in get_args(kind)))
    size = f" of {len(get_args(kind))}" if origin is tuple else ""
    return _WORDS.get(origin, _WORDS[dict]) + size


def shortened(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
