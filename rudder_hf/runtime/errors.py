"""The error that commands raise for bad data and options, and how values are listed in errors."""

from __future__ import annotations

from collections.abc import Iterable


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
