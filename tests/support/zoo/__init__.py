"""Tiny vision-language models of every kind, built from configurations without any download."""

from __future__ import annotations

import importlib
import pkgutil

from .base import Family, Row

__all__ = ["FAMILIES", "Family", "Row"]


def _collect() -> dict[str, Family]:
    """The families of all modules of this package, by name."""
    families: dict[str, Family] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for family in getattr(module, "FAMILIES", ()):
            if family.name in families:
                raise ValueError(f"two zoo families are named {family.name}")
            families[family.name] = family
    return families


FAMILIES: dict[str, Family] = _collect()
