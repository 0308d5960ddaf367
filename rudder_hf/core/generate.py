"""`generate` and `prepare_inputs_for_generation` of a steered model: the stock methods, with a state around them.

They are bound to the steered instance, which holds its handle (see `handle`). What runs is a context variable, so that
threads and nested calls have their own: the call that a model delegates to its language model, or the state of the
generation whose token loop runs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from .call import Call, Override, resolve_settings
from .contrast import open_contrast
from .errors import warn
from .hooks import STATE_KEY, clear_slot
from .state import GenerationState

HANDLE_NAME = "_rudder_handle"
_RUNNING: ContextVar[tuple[Any, Call | GenerationState] | None] = ContextVar("rudder_running", default=None)


def handle_of(model: nn.Module) -> Any:
    """Return the handle of a steered model or of the language model in it; None if it is not steered (any more)."""
    return vars(model).get(HANDLE_NAME)


def _original(model: nn.Module, name: str) -> Callable[..., Any]:
    """Return the method that RUDDER's replaces; also for a bound method that was kept beyond `remove()`."""
    handle = handle_of(model)
    saved = None if handle is None else handle.saved_method(model, name)
    return types.MethodType(getattr(type(model), name), model) if saved is None else saved


def newest_observation() -> tuple[Tensor, Tensor, Tensor] | None:
    """Return similarity, gate and push of the newest token, each (rows,), for a streamer of a traced generation.

    None where the generation around the call is not traced by RUDDER, or there is none.
    """
    running = _RUNNING.get()
    observed = running[1].observed if running is not None and isinstance(running[1], GenerationState) else None
    if observed is None:
        return None
    similarity, gate, push = (values[:, -1].detach().float() for values in observed)
    return similarity, gate, push


@contextmanager
def _running(what: tuple[Any, Call | GenerationState] | None) -> Iterator[None]:
    """Run a block under a call or a generation, and leave nothing of it behind."""
    token = _RUNNING.set(what)
    try:
        yield
    finally:
        _RUNNING.reset(token)
        clear_slot()


def steered_generate(
    self: Any, *args: Any, rudder: Override = None, output_rudder: bool | None = None, **kwargs: Any
) -> Any:
    """`generate` of a steered model: the stock method, with the state of this generation around it."""
    handle, original = handle_of(self), _original(self, "generate")
    if handle is None:
        return original(*args, **kwargs)
    call = Call(self, args, kwargs, rudder, output_rudder)
    with handle.running():
        # Another thread may have removed RUDDER since the first line.
        return run(handle, call if handle.installed else None, original, args, kwargs)


def generate_inner(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`generate` of a language model that a steered model delegates to, or of a model that other calls have borrowed.

    It is steered as part of a call that delegates to it. Used by itself, possibly within a generation of the model
    around it, it is the stock method, out of reach of that generation's state.
    """
    handle, outer, call = handle_of(self), _RUNNING.get(), None
    if outer is not None and outer[0] is handle and isinstance(outer[1], Call):
        call = outer[1].delegated(self, args, kwargs)
    return run(handle, call, _original(self, "generate"), args, kwargs)


def run(handle: Any, call: Call | None, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a stock `generate` for a call: steered, delegated, or (without a call) as if RUDDER were not there."""
    if call is not None and handle.disabled_blocks:
        call.rudder = False
    if call is None or (call.rudder is False and not call.traced):
        # Also here: a generation around this one must not reach into it.
        with _running(None):
            return original(*args, **kwargs)
    call.refuse_unsupported()
    if call.model is not handle.backbone.loop:
        with _running((handle, call)):
            return original(*args, **kwargs)
    state = open_generation(handle, call)
    with _running(None if state is None else (handle, state)):
        output = original(*args, **kwargs)
    if state is None:
        return output
    state.finish_forward()
    state.check_fired()
    if not state.forwards:
        raise RuntimeError(
            "This decoding method does not call `prepare_inputs_for_generation`, so RUDDER cannot steer it. Pass "
            "rudder=False to run it unsteered."
        )
    handle.conversations.remember(call, state, output)
    state.warn_too_strong()
    _warn_one_token(call, state, getattr(output, "sequences", output))
    if call.traced:
        record = {"layer": state.layer, **state.settings.record()}
        output["rudder"] = trace = state.recorder.lay_out(call, output, state.card, record)
        trace.contrast = [] if state.contrast is None else state.contrast.edited
    return output


def open_generation(handle: Any, call: Call) -> GenerationState | None:
    """Create the state for one `generate` call, or None if nothing will be steered or traced."""
    backbone, image_tokens = handle.backbone, handle.image_tokens
    settings = resolve_settings(handle.config, call.rudder, call.batch, handle.layer, len(backbone.layers))
    if settings.span != "prompt" and (call.input_ids is None or not image_tokens):
        raise ValueError(
            f"span={settings.span!r} needs input_ids, and a model whose config names its image token, to tell image "
            "from text. Use span='prompt'."
        )
    earlier = handle.conversations.recall(call, (handle.layer, settings.pool, settings.span))
    with_image = call.rows_with_image(image_tokens)
    contrast = open_contrast(backbone, call, image_tokens, settings)
    if contrast is not None:
        contrast.contrast_map = handle.contrast_map
    pooled, unread, continued = None, 0, 0
    if earlier is not None:
        with_image = [any(pair) for pair in zip(with_image, earlier.images_of(len(with_image)), strict=True)]
        # A call that only repeats what was emitted continues its answer: there is no new prompt in it.
        pooled, unread, continued = earlier.pooled, earlier.unread(call), earlier.continued(call)
        if contrast is not None and earlier.contrast_pending:
            raise ValueError(
                "RUDDER setting `contrast` cannot be applied: the answer of an earlier turn ended before "
                f"`contrast_after` ({settings.contrast_after}) tokens, so the cache holds image values that are still "
                "to be edited. Begin with a new cache, let the earlier turn answer longer, or use contrast=0."
            )
    if not all(with_image) and not settings.force and call.rudder is not False:
        asked = [image for row, image in enumerate(with_image) if settings.is_steered(row)]
        if not all(asked):
            which = "The prompt has" if len(asked) == 1 else f"{asked.count(False)} of {len(asked)} prompts have"
            warn(
                f"{which} no image, so there is no visual evidence to anchor to: left unsteered. Pass "
                "rudder={'force': True} to steer all the same, or rudder=False to silence this."
            )
        if not any(with_image) and not call.traced:
            return None
    return GenerationState(
        layer=handle.layer,
        settings=settings,
        with_image=with_image,
        prompt_length=call.prompt_length - continued,
        remaining_prompt=call.remaining_prompt - continued,
        continued=continued,
        image_tokens=image_tokens,
        multiplier=handle.multiplier,
        pooled=pooled,
        skip=unread,
        traced=call.traced,
        card_map=handle.card_map,
        contrast=contrast,
    )


def _warn_one_token(call: Call, state: GenerationState, sequences: Tensor) -> None:
    """Warn that no answer could change: each is its first token alone, which is not steered."""
    settings, new = state.settings, sequences[:, call.prompt_length :]
    if settings.steer_first_token or state.continued or new.shape[1] > 2:
        return
    strengths = (*settings.rows["alpha_max"], *settings.rows["contrast"])
    if not any(strengths) or not (any(state.with_image) or settings.force):
        return
    ends = torch.as_tensor(call.option("eos_token_id", []), dtype=torch.long, device=new.device)
    if bool(torch.isin(new[:, 1:], ends).all()):
        warn(
            "The answer is a single token, and the first token is not steered: RUDDER could not change it. "
            "The setting steer_first_token=True steers it too."
        )


def prepare_inputs_for_generation(self: nn.Module, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Plan the coming forward and hand the state down with its inputs."""
    prepare, running = _original(self, "prepare_inputs_for_generation"), _RUNNING.get()
    if running is None or running[0] is not handle_of(self) or not isinstance(running[1], GenerationState):
        return prepare(input_ids, *args, **kwargs)  # type: ignore[no-any-return]
    state = running[1]
    inputs: dict[str, Any] = prepare(input_ids, *args, **kwargs)
    embeds = inputs.get("inputs_embeds")
    query_length = (inputs["input_ids"] if embeds is None else embeds).shape[1]
    cached = inputs.get("past_key_values") is not None and kwargs.get("use_cache") is not False
    state.plan(input_ids, query_length, kwargs.get("attention_mask"), cached)
    if state.contrast is not None:
        state.contrast.before_forward(inputs.get("past_key_values"), input_ids.shape[1] - state.prompt_length)
    if not state.idle:
        inputs[STATE_KEY] = state
    return inputs


def refuse_continuous_batching(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Raise with the reason why continuous batching is not steered."""
    raise ValueError(
        "RUDDER does not steer continuous batching: it bypasses the generation loop. Use `generate`, or remove RUDDER "
        "from the model first."
    )
