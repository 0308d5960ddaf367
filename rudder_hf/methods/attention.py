"""A function around the attention of decoder layers, for methods that change or read attention weights."""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..core.backbones import self_attention
from ..core.errors import UnsupportedModelError

Attention = Callable[..., tuple[Tensor, Any]]
"""(module, query, key, value, mask, scaling=, dropout=, ...) -> output (rows, queries, heads, head size), weights."""

# Configs can only be put back in the order in which they were exchanged: one call at a time on a model.
_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()  # type: ignore[type-arg]
_LOCKS_LOCK = threading.Lock()
_NUMBERS = itertools.count()


@contextmanager
def around_attention(
    owner: nn.Module, layers: Sequence[nn.Module], around: Callable[[Attention], Attention]
) -> Iterator[None]:
    """While the block runs, attention of the given decoder layers goes through `around(original)`.

    transformers looks attention functions up by the name in the attention module's config. While the block runs, the
    modules have a copy of that config with another name, which is registered; masks are made by the model's own
    config and do not change.

    Args:
        owner: The model; calls on one model wait for each other.
        layers: The decoder layers.
        around: Makes the new function from the one that the layer uses (sdpa, eager, flash).

    Raises:
        UnsupportedModelError: A layer's attention does not look its function up.
    """
    with _LOCKS_LOCK:
        lock = _LOCKS.setdefault(owner, threading.RLock())
    with lock, ExitStack() as exits:
        for module in map(self_attention, layers):
            name, original = f"rudder_hf_{next(_NUMBERS)}", _attention_function(module)
            config = copy.copy(module.config)
            config._attn_implementation_internal = name  # type: ignore[union-attr]
            AttentionInterface.register(name, around(original))
            exits.callback(AttentionInterface._global_mapping.pop, name, None)
            exits.callback(vars(module).__setitem__, "config", module.config)
            vars(module)["config"] = config
        yield


def _attention_function(module: nn.Module) -> Attention:
    """The function that an attention module would call."""
    config, source = vars(module).get("config"), sys.modules[type(module).__module__]
    if not hasattr(config, "_attn_implementation_internal") or not hasattr(source, "ALL_ATTENTION_FUNCTIONS"):
        raise UnsupportedModelError(
            f"This method changes attention, but {type(module).__name__} does not take its attention function from "
            "transformers' AttentionInterface."
        )
    default = getattr(source, "eager_attention_forward", None)
    return source.ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, default)  # type: ignore[no-any-return,union-attr]


def attention_scores(query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """Scores before the softmax, masked ones minus infinity: (rows, heads, queries, keys) in float32.

    Args:
        query: (rows, heads, queries, head size).
        key: (rows, key heads, keys, head size).
        mask: As attention functions get it: None, (rows, keys), or (rows, 1, queries, keys) boolean or additive.
        options: The function's other arguments: `scaling`; those that change scores in another way are refused.
    """
    for name in ("softcap", "s_aux", "sinks"):
        if options.get(name) is not None:
            raise UnsupportedModelError(f"This method computes attention itself and does not know `{name}`.")
    heads = query.shape[1] // key.shape[1]
    scaling = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query.float(), key.repeat_interleave(heads, dim=1).float().transpose(2, 3)) * scale
    queries, keys = scores.shape[2:]
    if mask is None or mask.dim() == 2:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
        if mask is not None:
            allowed = mask[:, None, None, -keys:].bool() & allowed
    else:
        part = mask[:, :, -queries:, :keys]
        # Additive masks hold the dtype's lowest number, or minus infinity.
        allowed = part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2
    masked: Tensor = scores.masked_fill(~allowed, -torch.inf)
    return masked
