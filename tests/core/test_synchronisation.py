"""No waiting for the device while tokens are decoded: RUDDER reads no number off a tensor and makes no new one.

On a GPU each of these stops the stream of kernels once per token. Counted is what a steered generation does beyond the
same generation unsteered, by the dispatcher, which sees every operator whoever calls it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList

from rudder_hf import attach
from rudder_hf.core.state import GenerationState
from tests.support.helpers import OTHER_ROW, ROW, family_of, run, settings

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
    family = family_of(name)
    model = family.build()
    inputs = family.inputs(model, [ROW, OTHER_ROW])
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


@pytest.mark.parametrize(
    "careless",
    [
        lambda u: u * float(u.abs().max()),
        lambda u: u if (u.abs() > 0).any() else u * 2,
        lambda u: u * torch.tensor(2.0),
        lambda u: u + torch.ones(1),
        lambda u: u[u[:, 0, 0] != 0.5],
    ],
    ids=["item", "bool", "tensor", "ones", "mask"],
)
def test_the_count_notices(careless: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    push = GenerationState._push
    monkeypatch.setattr(GenerationState, "_push", lambda self, h, u, c: careless(push(self, h, u, c)))
    assert waits(added("llava", {})) != set()
