"""The equations: the slope that the paper's appendix gives, and equality with the slow reference."""

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
