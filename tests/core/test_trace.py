"""The numbers of the trace against what a bare hook sees, its rows under beams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import BaseStreamer

from rudder_hf import attach
from rudder_hf.core.state import after_end
from rudder_hf.demo.serve import newest_observation
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


def test_rows_of_the_trace_follow_beams() -> None:
    model = FAMILY.build()
    with attach(model, settings()):
        inputs = FAMILY.inputs(model, [ROW, OTHER_ROW])
        card = run(model, inputs, output_rudder=True).rudder.card
        beams = run(model, inputs, num_beams=3, num_return_sequences=2, output_rudder=True).rudder
        single = run(model, inputs, num_beams=3, num_return_sequences=2, output_rudder=True, max_new_tokens=1).rudder
    torch.testing.assert_close(beams.card, card.repeat_interleave(2, dim=0))
    torch.testing.assert_close(single.card, card.repeat_interleave(2, dim=0))
    assert (card[0] - card[1]).norm() > 0.1
    assert beams.gate.shape == beams.similarity.shape == (4, beams.push.shape[1])


def test_per_row_settings_with_beams() -> None:
    """Each prompt's beams are steered by its own setting, as in a call of its own."""
    model = FAMILY.build()
    options: dict[str, Any] = {"num_beams": 3, "output_scores": True}
    with attach(model, settings()):
        both = run(model, FAMILY.inputs(model, [ROW, OTHER_ROW]), rudder={"alpha_max": [0.0, 6.0]}, **options)
        for row, strength, other in ((0, 0.0, 6.0), (1, 6.0, 0.0)):
            single = FAMILY.inputs(model, [(ROW, OTHER_ROW)[row]])
            alone, unlike = (run(model, single, rudder={"alpha_max": a}, **options) for a in (strength, other))
            assert torch.equal(both.sequences[row, -NEW:], alone.sequences[0, -NEW:])
            torch.testing.assert_close(both.sequences_scores[row], alone.sequences_scores[0], rtol=1e-5, atol=1e-5)
            assert abs(unlike.sequences_scores[0] - alone.sequences_scores[0]) > 1e-3, "strength makes a difference"


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
