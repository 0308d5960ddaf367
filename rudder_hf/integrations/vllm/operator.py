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
from .planning import BLOCK, READ, STEER

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
    h, flat = _by_row(h), _by_row(update)
    if buffers.reads or buffers.fills:
        for start, part in _parts(flat):
            _read(part.squeeze(1), start, buffers)
    if buffers.whole is None:
        # Everything is read before anything is steered: the last position of a prompt may be both.
        buffers.refresh()
        count = flat.shape[0]
        if not buffers.branches:
            return _push_all(h, flat, buffers).view(update.shape)
        if count > min(ROWS, 2 * len(buffers.steered)):
            return _push_some(h, flat, buffers).view(update.shape)
        constants, mask = buffers.of_tokens(0, count)
        buffers.whole = constants, None if len(buffers.steered) == count else mask
    constants, some = buffers.whole
    out = steer_step(h, flat, constants)
    if some is not None:
        out = torch.where(some, out, flat)
    return out if flat is update else out.view(update.shape)


def _by_row(tokens: Tensor) -> Tensor:
    """One token after the other as (tokens, 1, hidden size), which a single one often is already."""
    fits = tokens.dim() == 3 and tokens.shape[1] == 1
    return tokens if fits else tokens.reshape(-1, 1, tokens.shape[-1])


def _parts(tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A few tokens at a time, with the place of the first."""
    return ((start, tokens[start : start + ROWS]) for start in range(0, len(tokens), ROWS))


def _read(update: Tensor, start: int, buffers: Buffers) -> None:
    """Add the updates of a few tokens, the first of which is `start`, to the sums of their slots and blocks."""
    places = slice(start, start + update.shape[0])
    delta = update.float()
    if buffers.by_norm:
        delta = delta * torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    if buffers.reads:
        buffers.sums.index_add_(0, buffers.tokens[READ, places], delta)
    if buffers.fills and buffers.block_sums is not None:
        buffers.block_sums.index_add_(0, buffers.tokens[BLOCK, places], delta)


def _push_all(h: Tensor, update: Tensor, buffers: Buffers) -> Tensor:
    """Eq. 3-5 for every token, those of nobody too."""
    out = torch.empty_like(update)
    for start, part in _parts(update):
        stop = start + len(part)
        constants, mask = buffers.of_tokens(start, stop)
        # Chosen, not multiplied by zero: rows of nobody may hold anything.
        out[start:stop] = torch.where(mask, steer_step(h[start:stop], part, constants), part)
    return out


def _push_some(h: Tensor, update: Tensor, buffers: Buffers) -> Tensor:
    """Eq. 3-5 for the tokens that are steered."""
    out = update.clone()
    for _, places in _parts(buffers.steered):
        constants = buffers.constants(buffers.tokens[STEER, places])
        out[places] = steer_step(h[places], update[places], constants)
    return out


def _steer(h: Tensor, update: Tensor) -> Tensor:
    """`read_and_steer` with the buffers of the running forward."""
    from vllm.forward_context import get_forward_context

    return read_and_steer(h, update, get_forward_context().no_compile_layers[CONTEXT_NAME])


def define_operator() -> None:
    """Make `torch.ops.rudder_hf.steer` known; harmless when it is."""
    if hasattr(torch.ops.rudder_hf, "steer"):
        return
    LIBRARY.define("steer(Tensor h, Tensor update) -> Tensor")
    # Not `torch.library.custom_op`, whose dispatch takes longer than the operator on a small batch.
    for key in ("CPU", "CUDA", "XPU"):
        LIBRARY.impl("steer", _steer, dispatch_key=key)
    LIBRARY._register_fake("steer", lambda h, update: torch.empty_like(update))
