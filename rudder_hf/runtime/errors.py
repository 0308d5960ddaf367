"""What cannot be used: the error for bad data and options, and JSON read as the dataclasses that it was written from.

```python
from_json(dict[str, MetricValue], {"chair_s": {"label": 3, ...}})
# ValueError: chair_s.label is 3, but has to be a text
```
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
_hints = cache(get_type_hints)


class InputError(ValueError):
    """Data or options that cannot be evaluated; the message says what was given, what is allowed and what to do."""


def listed(values: Iterable[object], limit: int = 5) -> str:
    """Return the first values, and how many more there are: `1, 2, 3 and 7 more`."""
    shown = [str(value) for value in values]
    rest = len(shown) - limit
    return ", ".join(shown[:limit]) + (f" and {rest} more" if rest > 0 else "")


def check_least(options: object, **least: int) -> None:
    """Raise InputError for an option that is less than it may be."""
    for name, value in least.items():
        if getattr(options, name) < value:
            raise InputError(f"`{name}` is {getattr(options, name)}; give at least {value}")


def from_json(kind: Any, value: Any, place: str = "") -> Any:
    """Return a value that was read from JSON as the type that it was written from.

    Args:
        kind: `Any`, `str`, `int`, `float`, `bool`, `None`; unions, lists, tuples and dictionaries of these;
            dataclasses.
        value: What was read.
        place: Where it stands in the file, for errors.

    Raises:
        ValueError: It is something else; the message says where and what.
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        fitting = [part for part in parts if type(value) is part or (part is float and type(value) is int)]
        rest = [part for part in parts if part is not NoneType]
        return value if fitting else from_json(rest[-1], value, place)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, _of_type(value, dict, "an object", place), place)
    if origin is dict:
        return {name: from_json(parts[1], part, f"{place}.{name}".lstrip(".")) for name, part in
                _of_type(value, dict, "an object", place).items()}  # fmt: skip
    if origin in (list, tuple, Sequence):
        entries = _of_type(value, list, "a list", place)
        kinds = parts if origin is tuple and parts[-1] is not ... else [parts[0]] * len(entries)
        if len(kinds) != len(entries):
            raise ValueError(f"{place or 'it'} is {shortened(value)}, but has to be a list of {len(kinds)}")
        found = [
            from_json(part, entry, f"{place}[{number}]")
            for number, (part, entry) in enumerate(zip(kinds, entries, strict=True))
        ]
        return tuple(found) if origin is tuple else found
    if kind is float and type(value) is int:
        return value
    return _of_type(value, kind, _WORDS[kind], place)


def _of_type(value: Any, kind: type, words: str, place: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{place or 'it'} is {shortened(value)}, but has to be {words}")
    return value


def _dataclass(kind: Any, value: dict[str, Any], place: str) -> Any:
    hints, fields = _hints(kind), dataclasses.fields(kind)
    unknown = sorted(value.keys() - {field.name for field in fields})
    missing = [
        field.name
        for field in fields
        if field.name not in value and field.default is field.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        wrong = f"has {', '.join(unknown)}, which is not known" if unknown else f"lacks {', '.join(missing)}"
        raise ValueError(f"{place or 'it'} {wrong}")
    return kind(**{name: from_json(hints[name], part, f"{place}.{name}".lstrip(".")) for name, part in value.items()})


def shortened(value: Any) -> str:
    """Return a value as JSON, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
