"""What RUDDER costs: own calls on the way in, memory, operators and waits for each decoded token."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LogitsProcessorList

import rudder_hf
from rudder_hf import RudderConfig, RudderForConditionalGeneration, attach
from rudder_hf.core import handle
from rudder_hf.core.call import resolve_settings
from rudder_hf.core.state import GenerationState
from rudder_hf.core.steering import pool_updates
from tests.support.helpers import OTHER_ROW, ROW, fresh, run, settings
from tests.support.toy import WIDTH, random_prompt, toy_model
from tests.support.zoo import FAMILIES

# The way of a reader from `generate` to the first forward of the model: few modules, few switches between them


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


# The plan of a forward: which positions are prompt, and which are steered


def test_without_a_cache_the_prompt_is_read_once() -> None:
    settings = resolve_settings(RudderConfig(), None, 1)
    state = GenerationState(layer=0, settings=settings, with_image=[True], prompt_length=4, remaining_prompt=4)
    for length, read, steered in ((4, (0, 4), 0), (5, (4, 4), 1), (6, (4, 4), 2)):
        state.plan(torch.zeros(1, length, dtype=torch.long), length, None, cached=False)
        assert state.prompt_span == read
        assert state.steer_count == steered
        state.fired = True  # as the layer's hook leaves it


# What RUDDER adds to memory: a few vectors per row, and pieces of the prompt while it is read


def kept_bytes(mode: str, length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of all tensors that the state of a generation holds at its last token."""
    states: list[GenerationState] = []
    steer = GenerationState.steer
    monkeypatch.setattr(GenerationState, "steer", lambda self, *args: states.append(self) or steer(self, *args))
    model, inputs = toy_model(), random_prompt(length)
    inputs["attention_mask"][:, :4] = 0  # as in a batch: without a mask RUDDER has less to do
    with attach(model, RudderConfig(layer=3, alpha_max=1.0, mode=mode)):
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    monkeypatch.undo()
    found: dict[int, int] = {}

    def add(value: Any) -> None:
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                found[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
            elif hasattr(leaf, "__dict__") and type(leaf).__module__.startswith("rudder_hf"):
                add(vars(leaf))

    add(vars(states[-1]))
    return sum(found.values())


@pytest.mark.parametrize("mode", ["beta", "add"])
def test_a_few_vectors_are_kept_whatever_the_prompt(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (kept_bytes(mode, length, monkeypatch) for length in (520, 600))
    assert short == long
    assert WIDTH * 4 <= short <= 3 * WIDTH * 4 + 64


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operator makes; views are not made."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return made


def test_the_prompt_is_read_in_pieces() -> None:
    """For a moment RUDDER needs as much as the positions that are pooled at a time, not as the whole prompt."""
    updates, padded = torch.ones(1, 1024, WIDTH), torch.ones(1, 1024)
    padded[:, :4] = 0
    with Largest() as largest:
        pool_updates(updates, padded)
    assert 0 < largest.bytes <= 256 * WIDTH * 4


# No waiting for the device while tokens are decoded: RUDDER reads no number off a tensor and makes no new one


# `.item()`, `.tolist()`, `bool(tensor)` and `float(tensor)` are one operator; the others have a result whose shape
# depends on the data, or compare on the host.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal", "is_nonzero"}
# From numbers of the host: a copy to the device each. `empty` and kin are what operators make for their own results.
FROM_HOST = {"lift_fresh", "scalar_tensor", "arange", "full", "zeros", "ones", "_pin_memory"}
# `.cpu()`, `.to(device)`: a change of device within the dispatcher.
COPIES = {"_to_copy", "copy_"}


class Ledger(TorchDispatchMode):
    """Names of all operators, token by token; the first list is the prefill's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[Counter[str]] = [Counter()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        asked = (kwargs or {}).get("device")
        moved = name in COPIES and asked is not None and torch.device(asked) != args[0].device
        masked = name.startswith("index") and any(
            isinstance(each, Tensor) and each.dtype == torch.bool for each in torch.utils._pytree.tree_leaves(args[1:])
        )
        self.tokens[-1]["nonzero" if masked else f"{name} to another device" if moved else name] += 1
        return func(*args, **(kwargs or {}))

    def end_token(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor, which `generate` calls once for each token."""
        self.tokens.append(Counter())
        return scores


def counted(model: Any, inputs: dict[str, Any], **options: Any) -> list[Counter[str]]:
    with Ledger() as ledger:
        run(model, inputs, logits_processor=LogitsProcessorList([ledger.end_token]), **options)
    # Behind the last token nothing is decoded.
    return ledger.tokens[1:-1]


def added(name: str, options: dict[str, Any]) -> list[Counter[str]]:
    """What RUDDER adds to each decoded token."""
    model, inputs = fresh(name, ROW, OTHER_ROW)
    vanilla = counted(model, inputs)
    with attach(model, settings()):
        steered = counted(model, inputs, **options)
    assert len(steered) == len(vanilla) > 3
    return [one - other for one, other in zip(steered, vanilla, strict=True)]


def waits(counts: list[Counter[str]]) -> set[str]:
    names = set().union(*counts)
    return {name for name in names if name in WAITING | FROM_HOST or name.endswith("another device")}


@pytest.mark.parametrize("name", ["llava", "instructblip", "llava-plain"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rudder": {"mode": "add"}},
        {"rudder": {"alpha_max": [3.0, 2.0], "k": [5.0, 2.0]}},
        {"rudder": {"steer_first_token": True, "span": "text", "pool": "norm"}},
        {"output_rudder": True},
    ],
    ids=["beta", "add", "rows", "span", "trace"],
)
def test_decoding_waits_for_nothing(name: str, options: dict[str, Any]) -> None:
    if name == "instructblip" and "span" in options.get("rudder", {}):
        pytest.skip("prompted with embeddings, it has no spans")
    counts = added(name, options)
    assert waits(counts) == set()
    # It did something, and the same for each token.
    assert min(count.total() for count in counts) >= 1
    assert len({tuple(sorted(count.items())) for count in counts}) == 1


CONTRAST = {"contrast": 0.5}


@pytest.mark.parametrize(
    ("rudder", "operators"),
    [
        ({}, 12),
        ({"mode": "add"}, 1),
        ({"alpha_max": 0.0, **CONTRAST}, 0),
        ({"alpha_max": 0.0, **CONTRAST, "contrast_after": 3}, 0),
        ({**CONTRAST, "contrast_after": 2}, 12),
    ],
)
def test_operators_for_each_decoded_token(rudder: dict[str, Any], operators: int) -> None:
    """The contrast adds none but where the images are edited, once."""
    totals = [count.total() for count in added("llava", {"rudder": rudder})]
    edits = [token for token, total in enumerate(totals) if total != operators]
    assert edits == ([rudder.get("contrast_after", 1) - 1] if "contrast" in rudder else [])


def test_the_modules_of_a_layer_are_looked_up_once_per_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[Any] = []
    look_up = handle.attention_update
    monkeypatch.setattr(handle, "attention_update", lambda layer: lookups.append(layer) or look_up(layer))
    model, inputs = fresh()
    with attach(model, settings()):
        run(model, inputs)
    assert len(lookups) == 1
