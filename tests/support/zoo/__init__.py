"""Tiny vision-language models of every kind, built from configurations without any download."""

from __future__ import annotations

from . import decoders, hybrids, llava, qformer, qwen, residuals, unusual
from .base import MISSING, Family, Row

__all__ = ["FAMILIES", "REFUSED", "Family", "Row"]

_MODULES = (llava, qformer, qwen, hybrids, decoders, unusual, residuals)
_ALL = {family.name: family for module in _MODULES for family in module.FAMILIES}
assert len(_ALL) == sum(len(module.FAMILIES) for module in _MODULES), "two zoo families have one name"
# What the installed transformers lacks is left out, by name.
FAMILIES: dict[str, Family] = {name: family for name, family in _ALL.items() if family.model_type not in MISSING}
REFUSED = [family for family in residuals.REFUSED if family.model_type not in MISSING]
