"""What RUDDER adds to memory: a few vectors per row, and pieces of the prompt while it is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rudder_hf import RudderConfig, attach
from rudder_hf.core.state import GenerationState
from rudder_hf.core.steering import pool_updates
from tests.support.toy import WIDTH, random_prompt, toy_model


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
