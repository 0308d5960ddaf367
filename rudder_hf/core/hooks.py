"""Hooks on the target layer: how the state of a generation reaches it and what happens there.

The state travels as one opaque keyword argument from `prepare_inputs_for_generation` through the model's forward to
the decoder layer. A pre-hook on the layer takes it out and pairs it with the layer's input `h`; a hook on the module
that produces the attention update uses the pair. Without the keyword argument both return at once.

Between the two hooks, which run in one thread within one layer call, the pair waits in a thread-local slot. The tracer
of `torch.compile` follows it there (since torch 2.6): in a graph that spans both hooks nothing of it remains at run
time, and where they are compiled apart (layer by layer, or around the model) threads still do not meet.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .backbones import Backbone, forwards_keywords

STATE_KEY = "rudder_state"

_SLOT = threading.local()


def clear_slot() -> None:
    """Forget what a forward that failed half-way left in this thread's slot."""
    _SLOT.state = None
    _SLOT.pair = None


def install_hooks(backbone: Backbone, index: int, update: nn.Module) -> list[RemovableHandle]:
    """Put the hooks on a decoder layer and its `update` module; return what removes them. Leaves none on failure."""
    layer = backbone.layers[index]
    hooks = _LayerHooks(index, forwards_keywords(backbone, layer))
    handles: list[RemovableHandle] = []
    try:
        if not hooks.by_keyword:
            handles.append(backbone.loop.register_forward_pre_hook(hooks.before_model, with_kwargs=True))
            handles.append(backbone.loop.register_forward_hook(hooks.after_model, always_call=True))
        handles.append(layer.register_forward_pre_hook(hooks.before_layer, with_kwargs=True))
        handles.append(update.register_forward_hook(hooks.after_update))
    except BaseException:
        for handle in handles:
            handle.remove()
        raise
    return handles


@dataclass(eq=False)
class _LayerHooks:
    """The hooks of one target layer. They refer to no module: a copy of the layer must not copy the model with it."""

    layer: int
    # Whether the model's forward hands the keyword argument down to the layer. Otherwise it is taken out at the top of
    # the model and waits in the thread's slot.
    by_keyword: bool

    def before_model(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Take the state out of the arguments of a model that would not hand it down."""
        _SLOT.state = kwargs.pop(STATE_KEY, None)
        return args, kwargs

    def after_model(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forget the state of the forward that has just ended, or failed."""
        _SLOT.state = None

    def before_layer(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Pair the state with what enters the layer."""
        state = kwargs.get(STATE_KEY) if self.by_keyword else getattr(_SLOT, "state", None)
        steered = state is not None and state.layer == self.layer
        pair: Any = (state, args[0] if args else kwargs["hidden_states"]) if steered else None
        # Set in any case: a pair left behind by a forward that failed must not meet this one.
        _SLOT.pair = pair
        if not steered:
            return None
        return args, {name: value for name, value in kwargs.items() if name != STATE_KEY}

    def after_update(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Read or steer the update that the module returned."""
        pair = getattr(_SLOT, "pair", None)
        _SLOT.pair = None
        if pair is None:
            return None
        state, h = pair
        if isinstance(output, tuple):
            return (state.steer(h, output[0]), *output[1:])
        return state.steer(h, output)
