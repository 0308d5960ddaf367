"""The equations of RUDDER on a flat batch, as one operator that compilers take as a whole.

Each token names the slot that it is read into and the slot that it is steered by, and a spare slot stands for "none":
no branch depends on data, so that it can be part of a captured graph. Where no graph is captured
(`Buffers.branches`), what a forward has no tokens for is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from ...steering_rudder import steer_step
from .buffers import ROWS, Buffers
from .planning import BLOCK, READ, STEER

LIBRARY: Any = Library("rudder_hf", "FRAGMENT")  # type: ignore[no-untyped-call]
# Under this name vLLM's forward context holds the buffers, as it holds the KV cache of each attention layer.
CONTEXT_NAME = "rudder_hf.buffers"


def read_and_steer(h: Tensor, update: Tensor, buffers: Buffers) -> Tensor:
    """Read and steer the tokens of one forward.

    Args:
        h: What entered the layer, (tokens, hidden size).
        update: What self-attention adds to it, same shape.
        buffers: The plan of the forward, the sums, to which the tokens that are read are added, and the settings.

    Returns:
        The steered update; rows that are not steered are `update` bit for bit.
    """
    count = update.shape[0]
    if buffers.reads or buffers.block_sums is not None or not buffers.branches:
        for start in range(0, count, ROWS):
            _read(update[start : start + ROWS], start, buffers)
    # Everything is read before anything is steered: the last position of a prompt may be both.
    buffers.refresh()
    if buffers.branches:
        return _push_some(h, update, buffers)
    if count <= ROWS:
        return _push(h, update, 0, buffers)
    out = torch.empty_like(update)
    for start in range(0, count, ROWS):
        stop = min(start + ROWS, count)
        out[start:stop] = _push(h[start:stop], update[start:stop], start, buffers)
    return out


def _read(update: Tensor, start: int, buffers: Buffers) -> None:
    """Add the updates of a few tokens, the first of which is `start`, to the sums of their slots and blocks."""
    places = slice(start, start + update.shape[0])
    delta = update.float()
    if buffers.by_norm:
        delta = delta * torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    buffers.sums.index_add_(0, buffers.tokens[READ, places], delta)
    if buffers.block_sums is not None:
        buffers.block_sums.index_add_(0, buffers.tokens[BLOCK, places], delta)


def _push(h: Tensor, update: Tensor, start: int, buffers: Buffers) -> Tensor:
    """Eq. 3-5 for a few tokens, the first of which is `start`."""
    slot = buffers.tokens[STEER, start : start + update.shape[0]]
    steered, _, _ = steer_step(h.unsqueeze(1), update.unsqueeze(1), buffers.constants(slot))
    # Chosen, not multiplied by zero: rows of nobody may hold anything.
    return torch.where((slot != buffers.spare_slot).unsqueeze(-1), steered.squeeze(1), update)


def _push_some(h: Tensor, update: Tensor, buffers: Buffers) -> Tensor:
    """Eq. 3-5 for the tokens that are steered."""
    if len(buffers.steered) == len(update) <= ROWS:
        ((_, constants),) = buffers.steps()
        return steer_step(h.unsqueeze(1), update.unsqueeze(1), constants)[0].squeeze(1)
    out = update.clone()
    for places, constants in buffers.steps():
        out[places] = steer_step(h[places].unsqueeze(1), update[places].unsqueeze(1), constants)[0].squeeze(1)
    return out


def _steer(h: Tensor, update: Tensor) -> Tensor:
    from vllm.forward_context import get_forward_context

    buffers = get_forward_context().no_compile_layers[CONTEXT_NAME]
    width = update.shape[-1]
    return read_and_steer(h.reshape(-1, width), update.reshape(-1, width), buffers).view(update.shape)


def _shape(h: Tensor, update: Tensor) -> Tensor:
    return torch.empty_like(update)


def define_operator() -> None:
    """Make `torch.ops.rudder_hf.steer` known; harmless when it is."""
    if hasattr(torch.ops.rudder_hf, "steer"):
        return
    LIBRARY.define("steer(Tensor h, Tensor update) -> Tensor")
    # Not `torch.library.custom_op`, whose dispatch takes longer than the operator on a small batch.
    for key in ("CPU", "CUDA", "XPU"):
        LIBRARY.impl("steer", _steer, dispatch_key=key)
    LIBRARY._register_fake("steer", _shape)
