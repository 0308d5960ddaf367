"""`SteeringHandle`: what is installed on a model, and the way back."""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .backbones import Backbone, attention_update, find_backbone, image_token_ids, resolve_layer
from .contrast import ContrastMap
from .generate import (
    HANDLE_NAME,
    Conversations,
    generate_inner,
    prepare_inputs_for_generation,
    refuse_continuous_batching,
    steered_generate,
)
from .hooks import install_hooks
from .state import CardMap

# Seconds that removing and moving hooks wait for generations of other threads.
_PATIENCE = 60.0
_CONTINUOUS_BATCHING = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")


class SteeringHandle(AbstractContextManager["SteeringHandle"]):
    """RUDDER on one model: what is installed, its settings, and the way back.

    Made by [`attach`]; also a context manager that removes everything at the end of the block.
    """

    # Whether the model may be the language model of the one that users call.
    of_part = False

    def __init__(self, model: nn.Module, config: Any) -> None:
        self.config = config  # a `RudderConfig`; changes take effect at the next `generate`
        self.backbone: Backbone = find_backbone(model, self.of_part)  # the parts of the model that are touched
        self.layer = resolve_layer(self.backbone, config.layer)  # from 0 on
        self.image_tokens = image_token_ids(self.backbone.model)
        self.installed = False
        self._hooks: list[RemovableHandle] = []
        self.saved: dict[tuple[nn.Module, str], Any] = {}  # what stood where RUDDER has put something
        self._lock = threading.Condition()
        self._running: dict[object, int] = {}  # the thread of each running generation
        self.disabled_blocks: list[None] = []  # one entry for each block around which RUDDER is switched off
        self.conversations = Conversations()  # what was read into caches that later calls reuse
        # Set by control experiments, which use something else than CARD or the image's values.
        self.card_map: CardMap | None = None
        self.contrast_map: ContrastMap | None = None

    def __repr__(self) -> str:
        where = f"layer {self.layer} of {len(self.backbone.layers)} in {type(self.backbone.model).__name__}"
        return f"<SteeringHandle: {'' if self.installed else 'not '}installed, {where}, {self.config.expression()}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> SteeringHandle:
        """Copy with the model: hooks and bound methods of the copy belong to the copied modules."""
        memo[id(self)] = clone = type(self).__new__(type(self))
        # What belongs to calls on the original does not come along.
        new = {"_lock": threading.Condition(), "_running": {}, "disabled_blocks": [], "conversations": Conversations()}
        rest = {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name not in new}
        vars(clone).update(new | rest)
        return clone

    def __reduce__(self) -> Any:
        raise TypeError("A model that is steered by RUDDER cannot be pickled: remove RUDDER first (`.remove()`).")

    def __exit__(self, *exception: Any) -> None:
        self.remove()

    def install(self) -> None:
        """Put the hooks on the model. If it is steered already or anything fails, it is left as it was."""
        loop, model = self.backbone.loop, self.backbone.model
        if any(HANDLE_NAME in vars(part) for part in (model, loop, self.backbone.layers)):
            raise ValueError(
                "This model is already steered by RUDDER; steering it twice would add the push twice. "
                "Change the settings with `rudder=` or `.config`, or remove the first: `.remove()`, `.unwrap()`, or "
                "rudder_hf.detach(model)."
            )
        try:
            for part in {model, loop}:
                self._set(part, HANDLE_NAME, self)
            # Only a mark: a copy of the decoder alone must not copy the whole model with it.
            self._set(self.backbone.layers, HANDLE_NAME, True)
            self.bind_generate()
            self.bind(loop, "prepare_inputs_for_generation", prepare_inputs_for_generation)
            self._move_hooks(self.layer)
            self.installed = True
        except BaseException:
            self.uninstall()
            raise

    def _move_hooks(self, layer: int) -> None:
        """Put the hooks on a layer. Those on another one stay if that fails."""
        update = attention_update(self.backbone.layers[layer])
        hooks = install_hooks(self.backbone, layer, update.module)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.layer, self._asked_layer = hooks, layer, self.config.layer
        self.multiplier = update.multiplier

    def bind_generate(self) -> None:
        """Make every `generate` of the model a steered one."""
        loop, model = self.backbone.loop, self.backbone.model
        self.bind(model, "generate", steered_generate)
        if loop is not model:
            self.bind(loop, "generate", generate_inner)
        for name in _CONTINUOUS_BATCHING:
            if hasattr(type(model), name):
                self.bind(model, name, refuse_continuous_batching)

    def bind(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        """Bind a function to one instance, with the signature of the method that it stands before."""

        @functools.wraps(getattr(type(module), name))
        def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        # A MethodType: `copy.deepcopy` rebinds it to the copied instance.
        self._set(module, name, types.MethodType(method, module))

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        self.saved[module, name] = vars(module).get(name)
        vars(module)[name] = value

    def remove(self) -> None:
        """Take everything off the model, after generations of other threads have ended. Twice is harmless.

        Raises a RuntimeError within a generation on the model, or if one of another thread does not end.
        """
        with self._lock:
            self._wait_for_generations("removing RUDDER")
            self.uninstall()

    def _wait_for_generations(self, what_for: str) -> None:
        """Let generations of other threads end: a streamer's reader is done shortly before its generation is."""
        around_us = threading.get_ident() in self._running.values()
        if around_us or not self._lock.wait_for(lambda: not self._running, timeout=_PATIENCE):
            raise RuntimeError(f"A generation is running on this model: wait for it before {what_for}.")

    def uninstall(self) -> None:
        """Take everything off the model at once, whatever runs on it."""
        for hook in self._hooks:
            hook.remove()
        for (module, name), value in self.saved.items():
            vars(module).pop(name, None)
            if value is not None:
                vars(module)[name] = value
        self._hooks, self.saved, self.installed = [], {}, False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark a generation as running, so that the hooks stay on the layer that the config names now."""
        mark = object()
        try:
            with self._lock:
                if self.installed and self.config.layer != self._asked_layer:
                    layer = resolve_layer(self.backbone, self.config.layer)
                    self._wait_for_generations("changing the layer")
                    self._move_hooks(layer)
                self._running[mark] = threading.get_ident()
            yield
        finally:
            with self._lock:
                self._running.pop(mark, None)
                self._lock.notify_all()
