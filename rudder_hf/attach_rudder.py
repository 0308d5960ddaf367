"""`attach`: steer a stock model's own `generate` in place, and take everything back out again."""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .backbones_rudder import Backbone, attention_update, find_backbone, forwards_keywords, resolve_layer
from .configuration_rudder import RudderConfig
from .generation_rudder import Conversations, lay_out_trace, open_generation
from .hooks_rudder import STATE_KEY, LayerHooks, clear_slot
from .request_rudder import Call, Request
from .settings_rudder import Override
from .state_rudder import GenerationState

HANDLE_NAME = "_rudder_handle"
_CONTINUOUS_BATCHING = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")

_REQUEST: ContextVar[Request | None] = ContextVar("rudder_request", default=None)
_GENERATION: ContextVar[tuple[Any, GenerationState] | None] = ContextVar("rudder_generation", default=None)


class SteeringHandle:
    """RUDDER on one model: what is installed, its settings, and the way back.

    Made by [`attach`]; also a context manager that removes everything at the end of the block.

    Attributes:
        config: The settings; changes take effect at the next `generate`.
        backbone: The parts of the model that are touched.
        layer: Index of the installed layer, from 0 on.
    """

    def __init__(self, model: nn.Module, config: RudderConfig) -> None:
        config.validate_settings()
        self.config = config
        self.backbone: Backbone = find_backbone(model)
        self.layer = resolve_layer(self.backbone, config.layer)
        self.multiplier = 1.0
        self._installed = False
        self._hooks: list[RemovableHandle] = []
        self._saved: list[tuple[nn.Module, str, Any]] = []
        self._lock = threading.Lock()
        self._running = 0
        self._disabled = 0
        self.conversations = Conversations()

    def __deepcopy__(self, memo: dict[int, Any]) -> SteeringHandle:
        """Copy with the model: hooks and bound methods of the copy belong to the copied modules."""
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        # What belongs to calls on the original, running or disabled, does not come along.
        clone._lock, clone._running, clone._disabled, clone.conversations = threading.Lock(), 0, 0, Conversations()
        rest = {name: value for name, value in vars(self).items() if name not in vars(clone)}
        vars(clone).update({name: copy.deepcopy(value, memo) for name, value in rest.items()})
        return clone

    def __enter__(self) -> SteeringHandle:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()

    @property
    def installed(self) -> bool:
        """Whether the hooks are on the model."""
        return self._installed

    # Installing and removing

    def install(self) -> None:
        """Put the hooks on the model. On failure the model is left as it was.

        Raises:
            ValueError: The model is steered already.
        """
        loop, model = self.backbone.loop, self.backbone.model
        if any(HANDLE_NAME in vars(part) for part in (model, loop, self.backbone.layers)):
            raise ValueError(
                "This model is already steered by RUDDER; steering it twice would add the push twice. "
                "Change the settings with `rudder=` or `.config`, or remove the first (`.remove()`, `.unwrap()`)."
            )
        try:
            for part in {id(part): part for part in (model, loop, self.backbone.layers)}.values():
                self._set(part, HANDLE_NAME, self)
            self._bind(model, "generate", _generate)
            if loop is not model:
                self._bind(loop, "generate", _generate_in_loop)
            self._bind(loop, "prepare_inputs_for_generation", _prepare_inputs_for_generation)
            for name in _CONTINUOUS_BATCHING:
                if hasattr(type(model), name):
                    self._bind(model, name, _refuse_continuous_batching)
            self._hooks = self._install_hooks(self.layer)
            self._installed = True
        except BaseException:
            self._uninstall()
            raise

    def _install_hooks(self, index: int) -> list[RemovableHandle]:
        layer = self.backbone.layers[index]
        update = attention_update(layer)
        hooks = LayerHooks(index, forwards_keywords(self.backbone, layer))
        handles = hooks.install(self.backbone.loop, layer, update)
        self.multiplier = update.multiplier
        return handles

    def _bind(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        """Bind a function to one instance, with the signature of the method that it stands before."""

        @functools.wraps(getattr(type(module), name))
        def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        # `copy.deepcopy` rebinds a MethodType to the copied instance; a closure over `module` would not be.
        self._set(module, name, types.MethodType(method, module))

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        self._saved.append((module, name, vars(module).get(name)))
        vars(module)[name] = value

    def original(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """The method that a bound one stands before."""
        for saved_module, saved_name, value in self._saved:
            if saved_module is module and saved_name == name and value is not None:
                return value  # type: ignore[no-any-return]
        return types.MethodType(getattr(type(module), name), module)

    def remove(self) -> None:
        """Take everything off the model. Doing it twice is harmless.

        Raises:
            RuntimeError: A generation is running on the model.
        """
        with self._lock:
            if self._running:
                raise RuntimeError("A generation is running on this model: wait for it before removing RUDDER.")
            self._uninstall()

    def _uninstall(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for module, name, value in reversed(self._saved):
            vars(module).pop(name, None)
            if value is not None:
                vars(module)[name] = value
        self._saved = []
        self._installed = False

    def _follow_config(self) -> None:
        """Move the hooks if `config.layer` has changed."""
        layer = resolve_layer(self.backbone, self.config.layer)
        if layer == self.layer:
            return
        if self._running:
            raise RuntimeError("`config.layer` changed while a generation is running on this model: wait for it.")
        hooks = self._install_hooks(layer)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.layer = hooks, layer

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Leave the model unsteered within the block, for all threads. For a single call pass `rudder=False`."""
        with self._lock:
            self._disabled += 1
        try:
            yield
        finally:
            with self._lock:
                self._disabled -= 1

    # Generating

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark a generation as running, so that the hooks stay where they are."""
        with self._lock:
            self._follow_config()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def open_request(self, call: Call, override: Override, output_trace: bool | None) -> Request | None:
        """What a call wants of RUDDER; None if it is to run as if RUDDER were not there."""
        if output_trace and not call.option("return_dict_in_generate", False):
            raise ValueError("output_rudder=True needs return_dict_in_generate=True: the trace is `out.rudder`.")
        if self._disabled:
            override = False
        if override is False and not output_trace:
            return None
        call.refuse_unsupported()
        return Request(self, override, bool(output_trace), call.has_images)


def attach(model: nn.Module, config: RudderConfig) -> SteeringHandle:
    """Steer a model's own `generate` in place, without a wrapper.

    ```python
    with attach(model, RudderConfig(layer=30, alpha_max=20.0, k=5.0)):
        model.generate(**inputs)          # steered; takes rudder= and output_rudder= too
    ```

    Args:
        model: A vision-language model, or a PEFT model around one.
        config: The settings. `handle.config` can be changed between calls.

    Returns:
        A handle with `remove()`, which is also a context manager.

    Raises:
        UnsupportedModelError: The model cannot be steered, with the reason.
        ValueError: The layer does not exist, or the model is steered already.
    """
    handle = SteeringHandle(model, config)
    handle.install()
    return handle


def handle_of(model: nn.Module) -> SteeringHandle | None:
    """The handle of a steered model or of the language model in it; None if it is not steered (any more)."""
    handle: SteeringHandle | None = vars(model).get(HANDLE_NAME)
    return handle


@contextmanager
def _within(request: Request | None, generation: tuple[SteeringHandle, GenerationState] | None) -> Iterator[None]:
    """Run a block under a request and a generation, and leave nothing of them behind."""
    request_token, generation_token = _REQUEST.set(request), _GENERATION.set(generation)
    try:
        yield
    finally:
        _GENERATION.reset(generation_token)
        _REQUEST.reset(request_token)
        clear_slot()


def _generate(
    self: nn.Module, *args: Any, rudder: Override = None, output_rudder: bool | None = None, **kwargs: Any
) -> Any:
    """`generate` of a steered model: the stock method, with the state of this generation around it."""
    handle = handle_of(self)
    if handle is None:
        # Somebody kept the bound method beyond `remove()`.
        return type(self).generate(self, *args, **kwargs)  # type: ignore[attr-defined]
    original = handle.original(self, "generate")
    call = Call(self, args, kwargs)
    with handle.running():
        request = handle.open_request(call, rudder, output_rudder)
        if handle.backbone.loop is self and request is not None:
            return _run(handle, request, call, original, args, kwargs)
        # Also without a request: a generation around this one must not reach into it.
        with _within(request, None):
            return original(*args, **kwargs)


def _generate_in_loop(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`generate` of a language model that a steered model delegates to."""
    handle = handle_of(self)
    if handle is None:
        return type(self).generate(self, *args, **kwargs)  # type: ignore[attr-defined]
    original = handle.original(self, "generate")
    request = _REQUEST.get()
    if request is None or request.owner is not handle:
        # The language model is used by itself, possibly within a generation of the model around it.
        with _within(None, None):
            return original(*args, **kwargs)
    return _run(handle, request, Call(self, args, kwargs), original, args, kwargs)


def _run(
    handle: SteeringHandle, request: Request, call: Call, original: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Run the token loop under a fresh state."""
    if handle.backbone.loop is not handle.backbone.model:
        call.refuse_unsupported()
    state = open_generation(
        handle.backbone.model, handle.config, handle.layer, handle.multiplier, call, request, handle.conversations
    )
    with _within(None, None if state is None else (handle, state)):
        output = original(*args, **kwargs)
    if state is None:
        return output
    state.collect()
    state.check_fired()
    if not state.forwards:
        raise RuntimeError(
            "This decoding method does not call `prepare_inputs_for_generation`, so RUDDER cannot steer it. Pass "
            "rudder=False to run it unsteered."
        )
    cache = call.cache if call.cache is not None else getattr(output, "past_key_values", None)
    handle.conversations.remember(cache, call, state, handle.layer)
    if request.output_trace:
        output["rudder"] = lay_out_trace(call, state, output)
    return output


def _prepare_inputs_for_generation(self: nn.Module, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Plan the coming forward and hand the state down with its inputs."""
    name = "prepare_inputs_for_generation"
    handle = handle_of(self)
    prepare = handle.original(self, name) if handle is not None else types.MethodType(getattr(type(self), name), self)
    model_inputs: dict[str, Any] = prepare(input_ids, *args, **kwargs)
    generation = _GENERATION.get()
    if generation is None or generation[0] is not handle:
        return model_inputs
    state = generation[1]
    embeds = model_inputs.get("inputs_embeds")
    query_length = (model_inputs["input_ids"] if embeds is None else embeds).shape[1]
    cached = model_inputs.get("past_key_values") is not None and kwargs.get("use_cache") is not False
    state.plan(input_ids, query_length, kwargs.get("attention_mask"), cached)
    model_inputs[STATE_KEY] = state
    return model_inputs


def _refuse_continuous_batching(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    raise ValueError(
        "RUDDER does not steer continuous batching: it bypasses the generation loop. Use `generate`, or remove RUDDER "
        "from the model first."
    )
