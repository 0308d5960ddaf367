"""The equations: properties of the paper's appendix, and equality with the slow reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.core.settings import _RULES
from rudder_hf.core.steering import (
    POOL_CHUNK,
    beta_gate,
    card,
    inject,
    pool_updates,
    similarity,
    steer_step,
    step_constants,
    unit,
)
from tests.support import reference

cosines = st.floats(-1, 1)
# As wide as the config allows.
sensitivities, concentrations = (st.floats(*_RULES[name][1]) for name in ("k", "c"))
seeds = st.integers(0, 10_000)


def gate(s: float, k: float, c: float, g_min: float = 0.0, g_max: float = 1.0) -> float:
    return float(beta_gate(*(torch.tensor([value]) for value in (s, k, c, g_min, g_max))))


@given(cosines, cosines, sensitivities, concentrations)
def test_gate_is_monotone(one: float, other: float, k: float, c: float) -> None:
    low, high = sorted((one, other))
    assert gate(low, k, c) <= gate(high, k, c) + 1e-6


@given(cosines, sensitivities, concentrations)
def test_gate_is_symmetric_before_clamping(s: float, k: float, c: float) -> None:
    assert gate(-s, k, c) == pytest.approx(1 - gate(s, k, c), abs=1e-5)


@given(cosines, sensitivities, concentrations, st.floats(0, 1), st.floats(0, 1))
def test_gate_is_bounded(s: float, k: float, c: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert low - 1e-6 <= gate(s, k, c, low, high) <= high + 1e-6
    assert 0 <= gate(s, k, c) <= 1  # which NaN is not


@given(st.floats(0.1, 20), st.floats(-2, 4))
def test_slope_at_zero_is_the_appendix_formula(k: float, c: float) -> None:
    s = torch.zeros(1, requires_grad=True)
    beta_gate(s, *(torch.tensor([value]) for value in (k, c, 0.0, 1.0))).backward()
    softplus = math.log1p(math.exp(c))
    expected = k / (1 + math.exp(-c)) / (2 * softplus)
    assert s.grad is not None
    assert float(s.grad) == pytest.approx(expected, rel=1e-3)


@given(cosines, sensitivities, concentrations)
def test_gate_equals_reference(s: float, k: float, c: float) -> None:
    assert gate(s, k, c, 0.05, 0.9) == pytest.approx(reference.gate(s, k, c, 0.05, 0.9), abs=1e-5)


@given(seeds, st.sampled_from(["mean", "norm"]))
@settings(max_examples=30, deadline=None)
def test_card_equals_reference(seed: int, pool: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(2, 300, 8, generator=generator)
    counts = torch.rand(2, 300, generator=generator) > 0.3
    v = card(updates, counts, pool)
    for row in range(2):
        expected = reference.card(updates[row].double(), counts[row].tolist(), pool)
        torch.testing.assert_close(v[row].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "norm"])
def test_spans_add_up(pool: str) -> None:
    updates = torch.randn(2, 700, 16)
    whole = pool_updates(updates, None, pool)
    parts = pool_updates(updates[:, :400], None, pool) + pool_updates(updates[:, 400:], None, pool)
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("pool", ["mean", "norm"])
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, 1e30])
def test_padding_never_counts(pool: str, rubbish: float) -> None:
    updates = torch.randn(1, 5, 4)
    weights = torch.tensor([[0, 0, 1, 1, 1]])
    padded = updates.clone()
    padded[:, :2] = rubbish
    torch.testing.assert_close(card(padded, weights, pool), card(updates[:, 2:], None, pool))


@pytest.mark.parametrize("pool", ["mean", "norm"])
def test_an_empty_or_cancelling_pool_is_zero_not_nan(pool: str) -> None:
    update = torch.randn(1, 1, 4)
    assert card(update, torch.zeros(1, 1), pool).tolist() == [[0.0] * 4]
    assert card(torch.cat([update, -update], dim=1), None, pool).tolist() == [[0.0] * 4]


@given(st.floats(1e-30, 1e30))
def test_unit_survives_any_scale(scale: float) -> None:
    vector = torch.tensor([[3.0, 0.0, -4.0]]) * scale
    torch.testing.assert_close(unit(vector), torch.tensor([[0.6, 0.0, -0.8]]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_computed_in_float32_whatever_the_dtype(dtype: torch.dtype) -> None:
    updates = torch.randn(2, 9, 8).to(dtype)
    v = card(updates)
    assert v.dtype == torch.float32
    torch.testing.assert_close(v, card(updates.float()))
    s = similarity(updates, v.unsqueeze(-1))
    assert s.dtype == torch.float32
    push, g = 3.0 * v.unsqueeze(1), torch.rand(2, 9, 1)
    pushed = inject(updates, push, g)
    assert pushed.dtype == dtype
    # One rounding to the dtype, no more.
    exact = updates.double() + (g * push).double()
    torch.testing.assert_close(pushed.double(), exact.to(dtype).double(), rtol=1e-7, atol=1e-6)


@given(seeds, st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_step_equals_the_reference(seed: int, capped: bool) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(3, generator=generator)

    h, update = (torch.randn(3, 4, 16, generator=generator) for _ in range(2))
    v = unit(torch.randn(3, 16, generator=generator))
    alpha_max, k, c, g_min = draw(0, 20), draw(0, 10), draw(-1, 2), draw(0, 0.5)
    alpha_max[0] = 0.0
    g_max = g_min + draw(0, 0.5)
    norm_cap = draw(0.1, 8) if capped else torch.full((3,), math.inf)
    steered = steer_step(h, update, step_constants(v, alpha_max, k, c, g_min, g_max, norm_cap))
    for row in range(3):
        direction, strength = v[row].double(), float(alpha_max[row])
        for position in range(4):
            state = h[row, position].double()
            s = float(state @ direction / state.norm())
            gate = reference.gate(s, float(k[row]), float(c[row]), float(g_min[row]), float(g_max[row]))
            length = min(strength * gate, float(norm_cap[row]))
            expected = update[row, position].double() + length * direction
            torch.testing.assert_close(steered[row, position].double(), expected, rtol=1e-4, atol=1e-4)


@given(cosines, st.floats(0, 100), st.floats(0.01, 10))
def test_norm_cap_bounds_the_push(s: float, alpha_max: float, tau: float) -> None:
    v, one = unit(torch.randn(1, 8)), torch.ones(1)
    constants = step_constants(v, alpha_max * one, 5.0 * one, one, 0 * one, one, tau * one)
    g = beta_gate(torch.full((1, 1, 1), s), *constants[2:])
    pushed = inject(torch.zeros(1, 1, 8), constants.push, g)
    assert float(pushed.norm()) == pytest.approx(min(alpha_max * gate(s, 5.0, 1.0), tau), rel=1e-4, abs=1e-6)


def test_add_is_the_constant_push() -> None:
    update, v = torch.randn(2, 3, 8), unit(torch.randn(2, 8))
    one = torch.ones(2)
    constants = step_constants(v, 4 * one, one, one, 0 * one, one, math.inf * one)
    torch.testing.assert_close(inject(update, constants.push), update + 4 * v[:, None])


def test_a_zero_hidden_state_has_similarity_zero() -> None:
    s = similarity(torch.zeros(1, 1, 8), unit(torch.randn(1, 8)).unsqueeze(-1))
    assert s.item() == 0.0
    assert gate(s.item(), 1.0, 1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("positions", [POOL_CHUNK, 2 * POOL_CHUNK, 2 * POOL_CHUNK + 1, 3000])
def test_half_precision_is_pooled_in_float32(dtype: torch.dtype, positions: int) -> None:
    """Half precision cannot even count that far; every position of every chunk is in the sum, the last one too."""
    updates = torch.ones(1, positions, 2, dtype=dtype)
    updates[:, -1, 1] = 5.0
    assert pool_updates(updates).tolist() == [[positions, positions + 4.0]]
    weights = torch.ones(1, positions)
    weights[:, 0] = 0
    assert pool_updates(updates, weights).tolist() == [[positions - 1.0, positions + 3.0]]
