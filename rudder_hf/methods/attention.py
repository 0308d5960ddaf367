"""Putting a function between a layer's attention and the implementation it uses (sdpa, eager, flash...).

transformers looks attention functions up by the name in the attention module's config. For the time of a call the
modules get a copy of that config with another name, which is registered for as long; masks are made by the model's own
config and do not change.
"""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..core.backbones import UnsupportedModelError, self_attention

Attention = Callable[..., tuple[Tensor, Any]]
"""(module, query, key, value, mask, scaling=, dropout=, ...) -> output (rows, queries, heads, head size), weights."""
Around = Callable[[Attention], Attention]

# Configs can only be put back in the order in which they were exchanged: one call at a time on a model.
_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()  # type: ignore[type-arg]
_LOCKS_LOCK = threading.Lock()


def _lock_of(module: nn.Module) -> Any:
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(module, threading.RLock())


@contextmanager
def around_attention(owner: nn.Module, layers: Sequence[nn.Module], around: Around) -> Iterator[None]:
    """While the block runs, attention of the given decoder layers goes through `around(original)`.

    Args:
        owner: The model; calls on one model wait for each other.
        layers: The decoder layers.
        around: Makes the new function from the one that the layer uses.

    Raises:
        UnsupportedModelError: A layer's attention does not look its function up.
    """
    with _lock_of(owner):
        modules = [self_attention(layer) for layer in layers]
        names: list[str] = []
        saved: list[tuple[nn.Module, Any]] = []
        try:
            for module in modules:
                name = f"rudder_hf_{id(module)}_{len(names)}"
                config = copy.copy(_config_of(module))
                AttentionInterface.register(name, around(_original(module)))
                names.append(name)
                config._attn_implementation_internal = name
                saved.append((module, module.config))
                vars(module)["config"] = config
            yield
        finally:
            for module, config in reversed(saved):
                vars(module)["config"] = config
            for name in names:
                AttentionInterface._global_mapping.pop(name, None)


def _config_of(module: nn.Module) -> Any:
    config = vars(module).get("config")
    source = sys.modules[type(module).__module__]
    if not hasattr(config, "_attn_implementation_internal") or not hasattr(source, "ALL_ATTENTION_FUNCTIONS"):
        raise UnsupportedModelError(
            f"This method changes attention, but {type(module).__name__} does not take its attention function from "
            "transformers' AttentionInterface."
        )
    return config


def _original(module: nn.Module) -> Attention:
    """The function that an attention module would call."""
    source = sys.modules[type(module).__module__]
    default = getattr(source, "eager_attention_forward", None)
    name = _config_of(module)._attn_implementation
    return source.ALL_ATTENTION_FUNCTIONS.get_interface(name, default)  # type: ignore[no-any-return]


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
    if mask is None:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
    elif mask.dim() == 2:
        causal = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
        allowed = mask[:, None, None, -keys:].bool() & causal
    else:
        part = mask[:, :, -queries:, :keys]
        # Additive masks hold the dtype's lowest number, or minus infinity.
        allowed = part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2
    masked: Tensor = scores.masked_fill(~allowed, -torch.inf)
    return masked
