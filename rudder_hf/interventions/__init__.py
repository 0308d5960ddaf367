"""Decoding methods under one interface, on stock transformers models."""

from __future__ import annotations

from typing import Any

from .base import Generate, Intervention
from .rudder import RudderAdd, RudderBeta
from .vanilla import Vanilla

__all__ = ["METHODS", "NAMES", "Generate", "Intervention", "RudderAdd", "RudderBeta", "Vanilla", "get"]

METHODS: dict[str, type[Intervention]] = {method.name: method for method in (Vanilla, RudderBeta, RudderAdd)}
"""The methods by name."""

NAMES: tuple[str, ...] = tuple(METHODS)
"""Names that `get` takes."""


def get(name: str, **settings: Any) -> Intervention:
    """A method by name.

    Raises:
        ValueError: There is no such method, or a setting is out of range.
        TypeError: The method has no such setting.
    """
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. Methods: {', '.join(NAMES)}.")
    return METHODS[name](**settings)
