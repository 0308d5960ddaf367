"""The equations of RUDDER as pure functions of tensors, in float32 whatever the model's dtype.

| paper | here |
|---|---|
| Eq. 1, the residual update Delta_i = A_i | the output of `backbones.attention_update` |
| Eq. 2, v_CARD | `card`: `pool_updates`, then `unit` |
| alignment s_t | `similarity` |
| Eq. 3, Beta gate g_t | `beta_gate` |
| Eq. 4, v_t^steer = alpha_max g_t v_CARD, and Eq. 5, which adds it | `inject` |
| the appendix's norm cap tau | `step_constants` |

This is the form that runs: what does not change from token to token is folded once into `StepConstants`, and one
decoding step (`steer_step`) takes twelve operators.
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


def similarity(h: Tensor, column: Tensor) -> Tensor:
    """s_t = cos(h_t, v_CARD), (rows, positions, 1).

    Args:
        h: What enters the layer, before its norm, (rows, positions, hidden size).
        column: The unit vector v_CARD as (rows, hidden size, 1).
    """
    h = h.float()
    length: Tensor = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
    return torch.bmm(h, column) / length.clamp_min(TINY_NORM)


def beta_gate(s: Tensor, k: Tensor, c: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The Beta gate g_t (Eq. 3), the mean of Beta(alpha_t, beta_t), clamped to [low, high]."""
    alpha = softplus(torch.addcmul(c, s, k))  # softplus(k s_t + c)
    beta = softplus(torch.addcmul(c, s, k, value=-1))  # softplus(-k s_t + c)
    return (alpha / (alpha + beta)).clamp(low, high)


def inject(update: Tensor, push: Tensor, g: Tensor | None = None) -> Tensor:
    """SA(h_t) + v_t^steer with v_t^steer = g_t alpha_max v_CARD (Eq. 4 and the part of Eq. 5 beside h).

    Added in float32 and rounded once to the update's dtype.

    Args:
        update: What self-attention adds to the residual stream, (rows, positions, hidden size).
        push: alpha_max v_CARD, (rows, 1, hidden size).
        g: The gate, (rows, positions, 1); None pushes at full strength (RUDDER-Add).
    """
    wide = update.float() if update.dtype.itemsize < 4 else update
    return (wide + push if g is None else torch.addcmul(wide, g, push)).to(update.dtype)


class StepConstants(NamedTuple):
    """What one decoding step needs and what never changes between steps, folded once after the prefill.

    Per-row settings have shape (rows, 1, 1), so they meet hidden states of shape (rows, positions, hidden size).
    """

    column: Tensor
    """v_CARD as (rows, hidden size, 1): a matrix product with it is the dot product h . v."""
    push: Tensor
    """alpha_max * v_CARD as (rows, 1, hidden size): times the gate it is v_t^steer."""
    k: Tensor
    c: Tensor
    low: Tensor
    """Lower bound of the gate, itself bounded by the norm cap."""
    high: Tensor
    """Upper bound of the gate: g_max, or less where the norm cap tau / alpha_max is reached before it."""


def step_constants(
    v: Tensor, alpha_max: Tensor, k: Tensor, c: Tensor, g_min: Tensor, g_max: Tensor, norm_cap: Tensor
) -> StepConstants:
    """Fold v (rows, hidden size) and per-row settings (rows,) into the constants of `steer_step`.

    Rows without a norm cap have an infinite one.
    """
    # alpha_max * g <= tau is the same as g <= tau / alpha_max; without strength there is nothing to cap.
    cap = torch.where(alpha_max > 0, norm_cap / alpha_max.clamp_min(TINY_NORM), torch.inf)
    bounds = (torch.minimum(g_min, cap), torch.minimum(g_max, cap))
    return StepConstants(
        v.unsqueeze(-1).contiguous(),
        (alpha_max[:, None] * v).unsqueeze(1).contiguous(),
        *(setting[:, None, None] for setting in (k, c, *bounds)),
    )


def steer_step(h: Tensor, update: Tensor, constants: StepConstants) -> Tensor:
    """One decoding step of RUDDER-Beta (Eq. 3-5): the steered update, in the dtype of `update`."""
    column, push, *gate = constants
    return inject(update, push, beta_gate(similarity(h, column), *gate))
