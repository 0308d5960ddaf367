"""Tiny vision-language models of every kind, built from configurations without any download."""

from __future__ import annotations

from . import decoders, hybrids, llava, qformer, qwen, residuals, unusual
from .base import Family, Row
from .residuals import REFUSED

__all__ = ["FAMILIES", "REFUSED", "Family", "Row"]

_MODULES = (llava, qformer, qwen, hybrids, decoders, unusual, residuals)
FAMILIES: dict[str, Family] = {family.name: family for module in _MODULES for family in module.FAMILIES}
assert len(FAMILIES) == sum(len(module.FAMILIES) for module in _MODULES), "two zoo families have one name"
