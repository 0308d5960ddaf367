"""The numbers that are computed and shown: half and double precision, attention implementations, the trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.generation import BaseStreamer

from rudder_hf import attach
from rudder_hf.core.state import after_end
from rudder_hf.demo.serve import newest_observation
from tests.support.helpers import (
    LAYER,
    NEW,
    OTHER_ROW,
    ROW,
    assert_near,
    direction,
    family_of,
    fresh,
    run,
    settings,
    target_layer,
    with_dtype,
)
from tests.support.zoo import FAMILIES, Family

DTYPES = (torch.bfloat16, torch.float16, torch.float64)
NAMES = ("llava", "idefics2", "instructblip", "qwen2_5_vl", "gemma3")


def cast(name: str, dtype: torch.dtype) -> tuple[Family, Any, dict[str, Any]]:
    """A model in another precision, and a batch for it."""
    family = family_of(name)
    model = family.build().to(dtype)
    return family, model, with_dtype(family.inputs(model, [ROW, OTHER_ROW]), dtype)


class Spy:
    """Keeps what enters the target layer, and the attention's update before and after RUDDER."""

    def __init__(self, family: Family, model: nn.Module) -> None:
        self.layer = target_layer(family, model)
        self.attention = self.layer.get_submodule(family.update)
        self.entering: list[Tensor] = []
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        self.layer.register_forward_pre_hook(self._enter, with_kwargs=True)
        self.attention.register_forward_hook(lambda m, a, output: self._keep(self.before, output))

    def install_after(self) -> None:
        """See what RUDDER, installed meanwhile, has made of the update."""
        self.attention.register_forward_hook(lambda m, a, output: self._keep(self.after, output))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.entering.append(args[0] if args else kwargs["hidden_states"])

    @staticmethod
    def _keep(where: list[Tensor], output: Any) -> None:
        where.append(output[0] if isinstance(output, tuple) else output)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pool", ["mean", "norm"])
def test_card_is_pooled_in_float32(pool: str, dtype: torch.dtype) -> None:
    """CARD is the float32 pool of the model's own updates, rounded nowhere in between."""
    family, model, inputs = cast("llava", dtype)
    spy = Spy(family, model)
    with attach(model, settings(pool=pool)):
        trace = run(model, inputs, output_rudder=True).rudder
    updates, mask = spy.before[0], inputs["attention_mask"]
    assert updates.dtype == dtype
    if pool == "norm":
        mask = mask * updates.double().norm(dim=-1)
    assert trace.card.dtype == trace.gate.dtype == torch.float32
    torch.testing.assert_close(trace.card.double(), direction(updates, mask), rtol=0, atol=1e-6)


def expected_push(h: Tensor, v: Tensor, mode: str) -> Tensor:
    """alpha_max * g * v of Eq. 3 and 4 in float64, for the settings of the tests."""
    if mode == "add":
        return 6.0 * v.unsqueeze(1)
    h = h.double()
    s = torch.nn.functional.cosine_similarity(h, v.unsqueeze(1), dim=-1)
    a, b = torch.nn.functional.softplus(5.0 * s + 1.0), torch.nn.functional.softplus(-5.0 * s + 1.0)
    return 6.0 * (a / (a + b)).clamp(0.05, 1.0).unsqueeze(-1) * v.unsqueeze(1)


@pytest.mark.parametrize("mode", ["beta", "add"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_push_is_rounded_once(name: str, dtype: torch.dtype, mode: str) -> None:
    """The steered update is the exact sum, rounded once to the model's dtype; the original is not written to."""
    family, model, inputs = cast(name, dtype)
    spy = Spy(family, model)
    with attach(model, settings(mode=mode)):
        spy.install_after()
        v = run(model, inputs, output_rudder=True).rudder.card.double()
    assert torch.equal(spy.before[0], spy.after[0])
    for h, before, after in zip(spy.entering[1:], spy.before[1:], spy.after[1:], strict=True):
        assert after.dtype == dtype
        exact = before.double() + expected_push(h, v, mode)
        if dtype == torch.float64:
            # The push itself is a float32 number; the update it is added to keeps all its bits.
            torch.testing.assert_close(after, exact, rtol=0, atol=1e-5)
            continue
        rounded = exact.to(dtype)
        # A sum that lies half-way between two numbers may fall to either side: rare, and by one step.
        assert (after != rounded).float().mean() < 0.02
        torch.testing.assert_close(after, rounded, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_double_keeps_its_precision() -> None:
    """In float64 the update keeps all its bits: a push far below float32's resolution arrives as it is."""
    family, model, inputs = cast("llava", torch.float64)
    spy = Spy(family, model)
    with attach(model, settings()):
        spy.install_after()
        v = run(model, inputs, output_rudder=True, rudder={"alpha_max": 6e-12}).rudder.card.double()
    for h, before, after in zip(spy.entering[1:], spy.before[1:], spy.after[1:], strict=True):
        torch.testing.assert_close(after - before, expected_push(h, v, "beta") * 1e-12, rtol=1e-3, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_eager_and_sdpa_attention(name: str) -> None:
    """The attention implementation changes the last bits only, of CARD, gates and logits."""
    outputs = []
    for implementation in ("sdpa", "eager"):
        model, inputs = fresh(name, ROW, OTHER_ROW)
        model.set_attn_implementation(implementation)
        with attach(model, settings()):
            outputs.append(run(model, inputs, output_rudder=True))
    assert_near(outputs[1], outputs[0], 1e-4)
    for field in ("card", "similarity", "gate", "push"):
        torch.testing.assert_close(getattr(outputs[1].rudder, field), getattr(outputs[0].rudder, field))


def test_eager_attention_weights_are_returned() -> None:
    """Attention weights, which the hooked module returns beside its update, come through as they are."""
    model, inputs = fresh()
    model.set_attn_implementation("eager")
    vanilla = run(model, inputs, output_attentions=True)
    with attach(model, settings()):
        output = run(model, inputs, output_attentions=True, rudder={"alpha_max": 0.0})
        steered = run(model, inputs, output_attentions=True)
    for step, wanted in zip(output.attentions, vanilla.attentions, strict=True):
        assert all(torch.equal(weights, other) for weights, other in zip(step, wanted, strict=True))
    # Steering acts after the target layer's own attention: up to that layer the first step is untouched.
    assert torch.equal(steered.attentions[1][LAYER], vanilla.attentions[1][LAYER])
    assert not torch.equal(steered.attentions[1][LAYER + 1], vanilla.attentions[1][LAYER + 1])


@pytest.mark.parametrize("mode", ["beta", "add"])
def test_autocast_does_not_reach_the_equations(mode: str) -> None:
    """Under autocast the model's products are rounded to bfloat16; CARD, similarity and gate are not."""
    family = family_of("llava")
    model, inputs = fresh(family, ROW, OTHER_ROW)
    spy = Spy(family, model)
    with attach(model, settings(mode=mode)), torch.autocast("cpu", dtype=torch.bfloat16):
        trace = run(model, inputs, output_rudder=True).rudder
    expected = direction(spy.before[0], inputs["attention_mask"])
    torch.testing.assert_close(trace.card.double(), expected, rtol=0, atol=2e-6)
    for token, h in enumerate(spy.entering[1:], start=1):
        similarity = torch.cosine_similarity(h[:, -1].double(), trace.card.double())
        torch.testing.assert_close(trace.similarity[:, token].double(), similarity, rtol=0, atol=1e-5)


# The trace: its numbers against what a bare hook sees, token by token for a streamer, and where an answer has ended


@pytest.mark.parametrize(
    ("change", "gate"),
    [({}, None), ({"norm_cap": 2.0}, None), ({"mode": "add"}, 1.0), ({"mode": "add", "norm_cap": 2.0}, 2.0 / 6.0)],
)
def test_push_is_relative_to_the_hidden_state(change: dict[str, Any], gate: float | None) -> None:
    model, inputs = fresh("llava", ROW, OTHER_ROW)
    spy = Spy(FAMILIES["llava"], model)
    with attach(model, settings(**change)):
        trace = run(model, inputs, output_rudder=True).rudder
    for token, h in enumerate((each[:, -1] for each in spy.entering[1:]), start=1):
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
    model, inputs = fresh()
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
