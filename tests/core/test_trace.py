"""The numbers of the trace against what a bare hook sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import BaseStreamer

from rudder_hf import attach
from rudder_hf.core.state import after_end
from rudder_hf.demo.engine import newest_observation
from tests.support.helpers import NEW, OTHER_ROW, ROW, run, settings, target_layer
from tests.support.zoo import FAMILIES

FAMILY = FAMILIES["llava"]


def entering(model: Any) -> list[Tensor]:
    """What enters the target layer at the position that emits each token, (rows, hidden size), forward by forward."""
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"])[:, -1].detach().clone())

    target_layer(FAMILY, model).register_forward_pre_hook(keep, with_kwargs=True)
    return seen


@pytest.mark.parametrize(
    ("change", "gate"),
    [({}, None), ({"norm_cap": 2.0}, None), ({"mode": "add"}, 1.0), ({"mode": "add", "norm_cap": 2.0}, 2.0 / 6.0)],
)
def test_push_is_relative_to_the_hidden_state(change: dict[str, Any], gate: float | None) -> None:
    model = FAMILY.build()
    seen = entering(model)
    with attach(model, settings(**change)):
        trace = run(model, FAMILY.inputs(model, [ROW, OTHER_ROW]), output_rudder=True).rudder
    for token, h in enumerate(seen[1:], start=1):
        similarity = torch.cosine_similarity(h.double(), trace.card.double())
        torch.testing.assert_close(trace.similarity[:, token].double(), similarity, rtol=0, atol=1e-5)
        length = 6.0 * trace.gate[:, token].double()
        torch.testing.assert_close(trace.push[:, token].double(), length / h.double().norm(dim=-1), rtol=1e-5, atol=0)
        if gate is not None:
            torch.testing.assert_close(trace.gate[:, token], torch.full((2,), gate))
        elif "norm_cap" in change:
            assert (length <= 2.0 + 1e-5).all()
    assert trace.push[:, 1:].min() > 0


class Watcher(BaseStreamer):
    """What a streamer sees of RUDDER, token by token; first come the ids of the prompt."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, ...] | None] = []

    def put(self, value: Tensor) -> None:
        self.seen.append(newest_observation())

    def end(self) -> None:
        pass


def test_a_streamer_sees_the_newest_token_of_a_traced_generation() -> None:
    model = FAMILY.build()
    inputs = FAMILY.inputs(model, [ROW])
    traced, untraced = Watcher(), Watcher()
    with attach(model, settings()):
        trace = run(model, inputs, streamer=traced, output_rudder=True).rudder
        run(model, inputs, streamer=untraced)
    assert traced.seen[0] is None
    for token, observed in enumerate(traced.seen[1:]):
        assert observed is not None
        for values, name in zip(observed, ("similarity", "gate", "push"), strict=True):
            assert torch.equal(values, getattr(trace, name)[:, token])
    assert untraced.seen == [None] * (NEW + 1)
    assert newest_observation() is None


def test_where_an_answer_has_ended() -> None:
    ids = torch.tensor([[5, 9, 5, 9], [5, 5, 5, 9], [5, 9, 0, 0], [5, 0, 5, 0]])
    none = torch.zeros_like(ids, dtype=torch.bool)
    # Without a token that ends answers there is no padding, whatever the last tokens are.
    assert torch.equal(after_end(ids, [], 0), none)
    assert after_end(ids, [9], None).tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]
    # Padding without it follows where a stopping criterion ended the row.
    assert after_end(ids, [9], 0).tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    # The same token for both: the one that ends the row is part of it.
    assert after_end(ids, [9, 7], 9).tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]
