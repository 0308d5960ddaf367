"""The equations of RUDDER as pure functions of tensors, in float32 whatever the model's dtype.

| paper | here |
|---|---|
| Eq. 1-2, CARD | `pool_updates`, `unit`, `card` |
| alignment s_t | `similarity` |
| Eq. 3, Beta gate | `beta_gate` |
| Eq. 4 with the appendix's norm cap tau | `steering_strength`, `steering_vector` |
| Eq. 5 | `inject` |

`StepConstants` and `steer_step` are the same equations with everything that does not change from token to token
folded beforehand. Only that form runs while decoding; a test holds the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

# A smaller norm than this is no direction: normalising it would only amplify rounding noise.
TINY_NORM = 1e-12
# Prompt positions pooled at a time, so that the extra memory of the prefill does not grow with the prompt.
POOL_CHUNK = 256


def pool_updates(updates: Tensor, weights: Tensor | None = None, pool: str = "mean") -> Tensor:
    """Sum of the residual updates Delta_i = A_i of a span (the numerator of Eq. 2's pooling).

    Only the sum is kept: the divisor of a mean cancels when CARD is L2-normalised, so that spans seen one after the
    other (chunks, turns of a conversation) are pooled by adding their sums.

    Args:
        updates: What self-attention adds to the residual stream, (rows, positions, hidden size).
        weights: 1 where a position counts and 0 where it does not (padding), (rows, positions). None counts all.
        pool: "mean" weighs positions equally, "norm" by the length ||Delta_i|| of their update.

    Returns:
        The float32 sum, (rows, hidden size).
    """
    rows, positions, hidden_size = updates.shape
    total = torch.zeros(rows, hidden_size, dtype=torch.float32, device=updates.device)
    for start in range(0, positions, POOL_CHUNK):
        chunk = updates[:, start : start + POOL_CHUNK].float()
        if pool == "norm":
            weight = torch.linalg.vector_norm(chunk, dim=-1)
        else:
            weight = torch.ones(chunk.shape[:2], dtype=torch.float32, device=chunk.device)
        if weights is not None:
            # A padding position may hold anything, NaN included, and 0 * NaN is NaN: both factors are zeroed.
            counts = weights[:, start : start + POOL_CHUNK].to(chunk.device) > 0
            weight = torch.where(counts, weight, 0.0)
            chunk = torch.where(counts.unsqueeze(-1), chunk, 0.0)
        total = total + torch.bmm(weight.unsqueeze(1), chunk).squeeze(1)
    return total


def unit(vector: Tensor) -> Tensor:
    """L2-normalise the last dimension in float32; a zero vector stays zero."""
    vector = vector.float()
    # Dividing by the largest entry first keeps the squares of very long or very short vectors representable.
    scale = vector.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    vector = vector / scale
    length: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return vector / length.clamp_min(TINY_NORM)


def card(updates: Tensor, weights: Tensor | None = None, pool: str = "mean") -> Tensor:
    """v_CARD (Eq. 2): the pooled residual updates of the prompt as a unit vector, (rows, hidden size)."""
    return unit(pool_updates(updates, weights, pool))


def similarity(h: Tensor, v: Tensor) -> Tensor:
    """s_t = cos(h_t, v_CARD) of hidden states (rows, positions, hidden size) and v (rows, hidden size)."""
    return (unit(h) * v.float().unsqueeze(1)).sum(-1)


def beta_gate(
    s: Tensor,
    k: Tensor | float,
    c: Tensor | float = 1.0,
    g_min: Tensor | float = 0.0,
    g_max: Tensor | float = 1.0,
) -> Tensor:
    """The Beta gate g_t (Eq. 3): mean of Beta(softplus(k s + c), softplus(-k s + c)), clamped to [g_min, g_max]."""
    s = s.float()
    a = softplus(k * s + c)
    b = softplus(-k * s + c)
    low = torch.as_tensor(g_min, dtype=torch.float32, device=s.device)
    high = torch.as_tensor(g_max, dtype=torch.float32, device=s.device)
    return (a / (a + b)).clamp(low, high)


def steering_strength(g: Tensor, alpha_max: Tensor | float, norm_cap: Tensor | float | None = None) -> Tensor:
    """alpha_max * g_t, at most tau = `norm_cap`: the length of the push, because v_CARD is a unit vector."""
    strength = alpha_max * g.float()
    if norm_cap is None:
        return strength
    return torch.minimum(strength, torch.as_tensor(norm_cap, dtype=torch.float32, device=g.device))


def steering_vector(g: Tensor, alpha_max: Tensor | float, v: Tensor, norm_cap: Tensor | float | None = None) -> Tensor:
    """v_t^steer (Eq. 4) for gates (rows, positions) and v (rows, hidden size): (rows, positions, hidden size)."""
    return steering_strength(g, alpha_max, norm_cap).unsqueeze(-1) * v.float().unsqueeze(1)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen half precision to float32 and leave the rest as it is (no operator for a float32 model)."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def inject(update: Tensor, v_steer: Tensor) -> Tensor:
    """SA(h) + v_t^steer (the part of Eq. 5 beside h), added in float32 and rounded once to the update's dtype."""
    return (at_least_float32(update) + v_steer).to(update.dtype)


class StepConstants(NamedTuple):
    """What one decoding step needs and what never changes between steps, folded once after the prefill.

    Per-row settings have shape (rows, 1, 1), so they meet hidden states of shape (rows, positions, hidden size).
    """

    column: Tensor
    """v_CARD as (rows, hidden size, 1): a matrix product with it is the dot product h . v."""
    push: Tensor
    """alpha_max * v_CARD as (rows, 1, hidden size): times the gate it is v_t^steer."""
    k: Tensor
    minus_k: Tensor
    c: Tensor
    low: Tensor
    """Lower bound of the gate, itself bounded by the norm cap."""
    high: Tensor
    """Upper bound of the gate: g_max, or less where the norm cap tau / alpha_max is reached before it."""


def step_constants(
    v: Tensor,
    alpha_max: Tensor,
    k: Tensor,
    c: Tensor,
    g_min: Tensor,
    g_max: Tensor,
    norm_cap: Tensor,
) -> StepConstants:
    """Fold v (rows, hidden size) and per-row settings (rows,) into the constants of `steer_step`.

    Rows without a norm cap have an infinite one.
    """
    # alpha_max * g <= tau is the same as g <= tau / alpha_max; without strength there is nothing to cap.
    cap = torch.where(alpha_max > 0, norm_cap / alpha_max.clamp_min(TINY_NORM), torch.inf)
    low, high = torch.minimum(g_min, cap), torch.minimum(g_max, cap)

    def per_row(setting: Tensor) -> Tensor:
        return setting[:, None, None]

    return StepConstants(
        column=v.unsqueeze(-1).contiguous(),
        push=(alpha_max[:, None] * v).unsqueeze(1).contiguous(),
        k=per_row(k),
        minus_k=per_row(-k),
        c=per_row(c),
        low=per_row(low),
        high=per_row(high),
    )


def step_similarity(h: Tensor, constants: StepConstants) -> Tensor:
    """s_t of `steer_step`, (rows, positions, 1); `h` is float32."""
    length: Tensor = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
    return torch.bmm(h, constants.column) / length.clamp_min(TINY_NORM)


def step_gate(s: Tensor, constants: StepConstants) -> Tensor:
    """g_t of `steer_step`, clamped and capped, (rows, positions, 1)."""
    a = softplus(torch.addcmul(constants.c, s, constants.k))
    b = softplus(torch.addcmul(constants.c, s, constants.minus_k))
    return (a / (a + b)).clamp(constants.low, constants.high)


def steer_step(h: Tensor, update: Tensor, constants: StepConstants) -> tuple[Tensor, Tensor, Tensor]:
    """One decoding step of RUDDER-Beta (Eq. 3-5) in as few operators as it takes.

    Args:
        h: The layer's input, before its norm, (rows, positions, hidden size).
        update: What self-attention adds to `h`, same shape.
        constants: From `step_constants`.

    Returns:
        The steered update in the dtype of `update`, and s_t and g_t of shape (rows, positions, 1).
    """
    s = step_similarity(h.float(), constants)
    g = step_gate(s, constants)
    return torch.addcmul(at_least_float32(update), g, constants.push).to(update.dtype), s, g


def add_step(update: Tensor, constants: StepConstants) -> Tensor:
    """One decoding step of RUDDER-Add: a constant push, whose strength `step_constants` was given already capped."""
    return inject(update, constants.push)
