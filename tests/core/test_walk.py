"""The way of a reader from `generate` to the first forward of the model: few modules, few switches between them."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import rudder_hf
from rudder_hf import RudderForConditionalGeneration
from tests.support.helpers import ROW, settings
from tests.support.zoo import FAMILIES

PACKAGE = str(Path(rudder_hf.__file__).parent)


def test_a_generation_switches_little_between_modules() -> None:
    """Counted: changes of module from one call of an own function to the next, before the model's first forward."""
    base = FAMILIES["llava"].build()
    model = RudderForConditionalGeneration.from_base(base, settings())
    inputs = FAMILIES["llava"].inputs(base, [ROW])
    modules: list[str] = []
    forwards: list[int] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        if frame.f_code is type(base).forward.__code__ or frame.f_code.co_name == "before_layer":
            forwards.append(len(modules))
        elif frame.f_code.co_filename.startswith(PACKAGE):
            modules.append(frame.f_code.co_filename)

    sys.setprofile(watch)
    try:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    finally:
        sys.setprofile(None)
    before = modules[: forwards[0]]
    assert 20 < len(before) <= 60
    assert sum(one != other for one, other in pairwise(before)) <= 26
