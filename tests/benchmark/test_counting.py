"""Counts are exact: operators and forwards equal independent counts."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from rudder_hf import RudderConfig, attach
from rudder_hf.benchmark.counting import added_operators, count, count_forwards
from rudder_hf.benchmark.timing import Bench
from rudder_hf.core.backbones import find_backbone
from rudder_hf.methods import NAMES, get
from tests.support.methods import IDS, batch, built, method
from tests.support.toy import random_prompt, toy_model

NEW = 5
TOY = toy_model()
CONFIG = RudderConfig(layer=3, alpha_max=1.0)
# Decoder forwards for a token after the first: the main branch, and those that a second branch adds.
EXPECTED = {"vcd": 2.0, "pai": 2.0}


class Counter(TorchDispatchMode):
    """Counts all operators, by a way of its own: no hooks, no splitting."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_one_token(mode: str | None) -> int:
    """What the last token of an answer of seven takes more than an answer of six."""
    model, totals = TOY, []
    for length in (6, 7):
        handle = None if mode is None else attach(model, RudderConfig(layer=3, alpha_max=1.0, mode=mode))
        with Counter() as counter:
            model.generate(**random_prompt(24), max_new_tokens=length, do_sample=False)
        if handle is not None:
            handle.remove()
        totals.append(counter.count)
    return totals[1] - totals[0]


@pytest.mark.parametrize("mode", [None, "beta", "add"])
def test_operator_count_equals_an_independent_one(mode: str | None) -> None:
    steered = get("vanilla") if mode is None else get(f"rudder-{mode}", config=CONFIG)
    counted = count(Bench(TOY, random_prompt(24), NEW), steered)
    assert counted.operators == operators_of_one_token(mode)
    assert len(counted.token) == counted.operators
    assert counted.peak is None  # only CUDA's allocator knows


def test_added_operators_keep_order_and_mark_removed_ones() -> None:
    assert added_operators(["mm", "add", "mm"], ["mm", "norm", "bmm", "add", "mm"]) == ["norm", "bmm"]
    assert added_operators(["mm", "add"], ["mm", "mul"]) == ["-add", "mul"]


def counted_forwards(name: str, family: str, beams: int, **changes: Any) -> tuple[int, int, int]:
    """Prompt and answer positions as counted, and all positions by an independent hook: outputs of the last layer."""
    model, inputs = built(family), batch(family)
    seen = [0]

    def note(module: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen[0] += hidden.shape[0] * hidden.shape[1]

    backbone = find_backbone(model)
    handle = backbone.layers[-1].register_forward_hook(note)
    try:
        with method(name, **changes).applied(model) as generate, count_forwards(backbone) as found:
            generate(
                **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, num_beams=beams, sample_ids=IDS
            )
    finally:
        handle.remove()
    return found["prompt"], found["answer"], seen[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beams", [1, 2])
def test_forwards_per_token_are_what_each_method_says(name: str, beams: int) -> None:
    prompt, answer, everything = counted_forwards(name, "llava", beams)
    rows = 2 * beams
    assert prompt + answer == everything
    assert answer == EXPECTED.get(name, 1.0) * rows * (NEW - 1)
    assert method(name).forwards_per_token == EXPECTED.get(name, 1.0)
    length = batch("llava")["input_ids"].shape[1]
    extra = method(name).extra_prefills
    # Side prompts may be shorter (without image), and VISTA's are not repeated for each beam.
    assert prompt >= rows * length
    assert (prompt > rows * length) == (extra > 0)
    if name == "vcd":
        assert prompt == 2 * rows * length


@pytest.mark.parametrize("family", ["instructblip", "qwen2_5_vl"])
def test_forwards_are_counted_where_another_module_runs_the_loop(family: str) -> None:
    for name, factor in (("vanilla", 1), ("vcd", 2)):
        prompt, answer, everything = counted_forwards(name, family, 1)
        assert (answer, prompt + answer) == (factor * 2 * (NEW - 1), everything)


def test_answers_have_the_length_that_is_timed() -> None:
    model = TOY
    inputs = random_prompt(24)
    with Bench(model, inputs, 2).opened(get("vanilla")) as answer:
        first = int(answer()[0, 24])
    model.generation_config.eos_token_id = first
    try:
        with Bench(model, inputs, NEW).opened(get("vanilla")) as answer:
            assert answer().shape[1] == 24 + NEW
        assert model.generation_config.eos_token_id == first
    finally:
        model.generation_config.eos_token_id = None
