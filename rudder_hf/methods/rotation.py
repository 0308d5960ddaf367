"""Turning a layer's MLP output towards a direction without changing its length, as VISTA and VTI do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..core.backbones import UnsupportedModelError
from .runs import Run

# The module of a layer whose output is what the feed-forward part adds to the residual stream: the norm after it where
# there is one, else the feed-forward module itself.
_MLP_OUTPUT_NAMES = (
    "post_feedforward_layernorm",
    "post_mlp_layernorm",
    "mlp",
    "feed_forward",
    "block_sparse_moe",
    "moe",
)


def mlp_output(layer: nn.Module) -> nn.Module:
    """The module of a decoder layer whose output is added to the residual stream after the feed-forward part.

    Raises:
        UnsupportedModelError: The layer keeps it in no module of its own (OPT).
    """
    for name in _MLP_OUTPUT_NAMES:
        module = getattr(layer, name, None)
        if isinstance(module, nn.Module):
            return module
    raise UnsupportedModelError(
        f"This method changes the output of each layer's MLP, but {type(layer).__name__} has none of the modules "
        f"{', '.join(_MLP_OUTPUT_NAMES)}."
    )


def turn(x: Tensor, direction: Tensor, strength: Tensor | float) -> Tensor:
    """||x|| norm(norm(x) + strength norm(d)), in the dtype of x; a zero direction leaves x as it is.

    Args:
        x: (rows, positions, hidden size).
        direction: d, broadcastable to x.
        strength: Broadcastable to (rows, positions, 1).
    """
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    turned = normalize(normalize(wide, dim=-1) + strength * normalize(direction.to(wide), dim=-1), dim=-1)
    result: Tensor = (length * turned).to(x.dtype)
    return result


def turn_each_layer(run: Run, turn_layer: Callable[[int, Tensor], Tensor]) -> None:
    """In every forward of the loop, replace each layer's MLP output x by `turn_layer(layer, x)`."""

    def bind(index: int) -> Callable[[Tensor], Tensor]:
        return lambda x: turn_layer(index, x)

    for index, layer in enumerate(run.backbone.layers):
        run.hook_output(mlp_output(layer), bind(index))


@contextmanager
def last_positions(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Keep the last position of each module's output while the block runs, in float32: (rows, hidden size) each.

    A module may return a tensor, a tuple that starts with one, or a model output with `last_hidden_state`. Forwards of
    other threads are not looked at.
    """
    seen: list[Tensor] = [torch.empty(0)] * len(modules)
    thread = threading.get_ident()

    def keep(index: int) -> Callable[..., None]:
        def after(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() != thread:
                return
            hidden = getattr(output, "last_hidden_state", output)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            seen[index] = hidden[:, -1].float()

        return after

    with ExitStack() as exits:
        for index, module in enumerate(modules):
            exits.callback(module.register_forward_hook(keep(index)).remove)
        yield seen
