"""The equations of RUDDER on a flat batch, as one operator that compilers take as a whole.

Each token names the slot that it is read into and the slot that it is steered by, and a spare slot stands for "none":
no branch depends on data, so that it can be part of a captured graph. Where no graph is captured
(`Buffers.branches`), what a forward has no tokens for is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from ...core.steering import steer_step
from .buffers import Buffers
from .planning import BLOCK, READ

LIBRARY: Any = Library("rudder_hf", "FRAGMENT")  # type: ignore[no-untyped-call]
# Under this name vLLM's forward context holds the buffers, as it holds the KV cache of each attention layer.
CONTEXT_NAME = "rudder_hf.buffers"
# Tokens at a time, so that the memory for intermediate results does not grow with the prompt.
ROWS = 512


def read_and_steer(h: Tensor, update: Tensor, buffers: Buffers) -> Tensor:
    """Read and steer the tokens of one forward.

    Args:
        h: What entered the layer, (..., hidden size); what comes before is one token after the other.
        update: What self-attention adds to it, same shape.
        buffers: The plan of the forward, the sums, to which the tokens that are read are added, and the settings.

    Returns:
        The steered update; rows that are not steered are `update` bit for bit.
    """
    h, flat = (tokens.reshape(-1, 1, tokens.shape[-1]) for tokens in (h, update))
    coming = buffers.coming
    count = flat.shape[0]
    for span in _slices(count):
        if coming.reads or coming.fills or not buffers.branches:
            _read(flat[span].squeeze(1), span, buffers)
    # Everything is read before anything is steered: the last position of a prompt may be both.
    buffers.refresh()
    if buffers.branches and not coming.steers:
        return update
    out = torch.empty_like(flat)
    for span in _slices(count):
        constants, mask = buffers.of_tokens(span)
        # Chosen, not multiplied by zero: padding may hold anything.
        out[span] = torch.where(mask, steer_step(h[span], flat[span], constants), flat[span])
    return out.view(update.shape)


def _slices(count: int) -> Iterator[slice]:
    """Yield a few of the forward's tokens at a time."""
    return (slice(start, min(start + ROWS, count)) for start in range(0, count, ROWS))


def _read(update: Tensor, places: slice, buffers: Buffers) -> None:
    """Add the updates of a few tokens to the sums of their slots and blocks."""
    delta = update.float()
    if buffers.by_norm:
        delta = delta * torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    _add(buffers.sums, buffers.tokens[READ, places], delta)
    if buffers.block_sums is not None:
        _add(buffers.block_sums, buffers.tokens[BLOCK, places], delta)


def _add(sums: Tensor, rows: Tensor, delta: Tensor) -> None:
    """Add each token's delta to its row of `sums`; the last row stands for "none" and is left alone.

    Instead of adding token by token, which on a GPU are atomic additions to few rows in no fixed order, each token
    writes the whole sum of its row, so that equal rows are written with equal values.
    """
    wanted = (rows != len(sums) - 1)[:, None]
    same = ((rows[:, None] == rows) & wanted).float()
    # Chosen, not multiplied by zero: padding may hold anything.
    sums[rows] = sums[rows] + same @ torch.where(wanted, delta, 0.0)


def _steer(h: Tensor, update: Tensor) -> Tensor:
    """Run `read_and_steer` with the buffers of the running forward."""
    from vllm.forward_context import get_forward_context

    out = read_and_steer(h, update, get_forward_context().no_compile_layers[CONTEXT_NAME])
    # A compiler takes the output for memory of its own.
    return out.clone() if out is update else out


def define_operator() -> None:
    """Define `torch.ops.rudder_hf.steer`; harmless when it is there."""
    if hasattr(torch.ops.rudder_hf, "steer"):
        return
    LIBRARY.define("steer(Tensor h, Tensor update) -> Tensor")
    # Not `torch.library.custom_op`, whose dispatch takes longer than the operator on a small batch.
    for key in ("CPU", "CUDA", "XPU"):
        LIBRARY.impl("steer", _steer, dispatch_key=key)
    LIBRARY._register_fake("steer", lambda h, update: torch.empty_like(update))
