"""`generate` and `prepare_inputs_for_generation` of a steered model: the stock methods, with a state around them.

They are bound to the steered instance, which holds the handle that they ask (see `handle`). The state of the
running generation is a context variable, so that threads and nested calls have their own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from .call import Call, Request
from .generation import lay_out_trace, open_generation
from .hooks import STATE_KEY, clear_slot
from .settings import Override
from .state import GenerationState

HANDLE_NAME = "_rudder_handle"

_REQUEST: ContextVar[Request | None] = ContextVar("rudder_request", default=None)
_GENERATION: ContextVar[tuple[Any, GenerationState] | None] = ContextVar("rudder_generation", default=None)


def handle_of(model: nn.Module) -> Any:
    """The handle of a steered model or of the language model in it; None if it is not steered (any more)."""
    return vars(model).get(HANDLE_NAME)


def newest_observation() -> tuple[Tensor, Tensor, Tensor] | None:
    """Similarity, gate and push of the newest token, each (rows,), for a streamer while a traced generation runs.

    None where the generation around the call is not traced by RUDDER, or there is none.
    """
    generation = _GENERATION.get()
    observed = None if generation is None else generation[1].observed
    if observed is None:
        return None
    similarity, gate, push = (values[:, -1].detach().float() for values in observed)
    return similarity, gate, push


@contextmanager
def _within(request: Request | None, generation: tuple[Any, GenerationState] | None) -> Iterator[None]:
    """Run a block under a request and a generation, and leave nothing of them behind."""
    request_token, generation_token = _REQUEST.set(request), _GENERATION.set(generation)
    try:
        yield
    finally:
        _GENERATION.reset(generation_token)
        _REQUEST.reset(request_token)
        clear_slot()


def steered_generate(
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
        if not handle.installed:
            # Another thread removed RUDDER between the two lines above.
            return type(self).generate(self, *args, **kwargs)  # type: ignore[attr-defined]
        request = handle.open_request(call, rudder, output_rudder)
        if handle.backbone.loop is self and request is not None:
            return _run(handle, request, call, original, args, kwargs)
        # Also without a request: a generation around this one must not reach into it.
        with _within(request, None):
            return original(*args, **kwargs)


def generate_in_loop(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
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


def generate_apart(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`generate` of a model that other calls have borrowed: the stock method, out of reach of their states."""
    handle = handle_of(self)
    original = types.MethodType(type(self).generate, self) if handle is None else handle.original(self, "generate")  # type: ignore[attr-defined]
    with _within(None, None):
        return original(*args, **kwargs)


def generate_by_request(model: Any, rudder: Override, output_rudder: bool | None, kwargs: dict[str, Any]) -> Any:
    """The stock `generate` of a model with borrowed hooks, steered for this call alone."""
    handle = handle_of(model)
    call = Call(model, (), kwargs)
    request = handle.open_request(call, rudder, output_rudder)
    # Not the instance's own, which may be the very function that called us.
    stock = types.MethodType(type(model).generate, model)
    if request is None:
        with _within(None, None):
            return stock(**kwargs)
    return _run(handle, request, call, stock, (), kwargs)


def _run(handle: Any, request: Request, call: Call, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the token loop under a fresh state."""
    if handle.backbone.loop is not handle.backbone.model:
        call.refuse_unsupported()
    if request.output_trace and not call.option("return_dict_in_generate", False):
        raise ValueError("output_rudder=True needs return_dict_in_generate=True: the trace is `out.rudder`.")
    state = open_generation(
        handle.backbone.model,
        handle.config,
        handle.layer,
        handle.multiplier,
        call,
        request,
        handle.conversations,
        handle.card_map,
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
    sequences = output if isinstance(output, Tensor) else output.sequences
    handle.conversations.remember(cache, call, state, sequences)
    if request.output_trace:
        output["rudder"] = lay_out_trace(call, state, output)
    return output


def prepare_inputs_for_generation(self: nn.Module, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
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


def refuse_continuous_batching(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Say why continuous batching is not steered."""
    raise ValueError(
        "RUDDER does not steer continuous batching: it bypasses the generation loop. Use `generate`, or remove RUDDER "
        "from the model first."
    )
