"""`generate` and `prepare_inputs_for_generation` of a steered model: the stock methods, with a state around them.

They are bound to the steered instance, which holds its handle (see `handle`). What runs is a context variable, so that
threads and nested calls have their own: the call that a model delegates to its language model, or the state of the
generation whose token loop runs.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from .backbones import attention_update, image_token_ids
from .call import Call, CallSettings, Override, resolve_settings
from .contrast import ImageContrast, open_contrast
from .errors import warn
from .hooks import STATE_KEY, clear_slot
from .state import GenerationState

HANDLE_NAME = "_rudder_handle"
# Arguments of `prepare_inputs_for_generation` with an entry for each position, beside the ids.
_ALONG_IDS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")

_RUNNING: ContextVar[tuple[Any, Call | GenerationState] | None] = ContextVar("rudder_running", default=None)


def handle_of(model: nn.Module) -> Any:
    """The handle of a steered model or of the language model in it; None if it is not steered (any more)."""
    return vars(model).get(HANDLE_NAME)


def _original(model: nn.Module, name: str) -> Callable[..., Any]:
    """The method that RUDDER's stands before; also for a bound method that was kept beyond `remove()`."""
    handle = handle_of(model)
    saved = None if handle is None else handle.saved_method(model, name)
    return types.MethodType(getattr(type(model), name), model) if saved is None else saved


def newest_observation() -> tuple[Tensor, Tensor, Tensor] | None:
    """Similarity, gate and push of the newest token, each (rows,), for a streamer while a traced generation runs.

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


def generate_apart(self: Any, *args: Any, **kwargs: Any) -> Any:
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
    if state.contrast is not None and state.contrast.uncached and not isinstance(output, Tensor):
        output = dataclasses.replace(output, past_key_values=None)  # That of the last forward.
    state.collect()
    state.check_fired()
    if not state.forwards:
        raise RuntimeError(
            "This decoding method does not call `prepare_inputs_for_generation`, so RUDDER cannot steer it. Pass "
            "rudder=False to run it unsteered."
        )
    handle.conversations.remember(call, state, output)
    _warn_one_token(call, state, getattr(output, "sequences", output))
    if call.traced:
        record = {"layer": state.layer, **state.settings.record()}
        output["rudder"] = trace = state.recorder.lay_out(call, output, state.card, record)
        trace.contrast = [] if state.contrast is None else state.contrast.edited
    return output


def open_generation(handle: Any, call: Call) -> GenerationState | None:
    """The state of a generation on the token loop; None if nothing is to be steered or traced."""
    model = handle.backbone.model
    settings = resolve_settings(handle.config, call.rudder, call.batch, handle.layer)
    image_tokens, update = image_token_ids(model), attention_update(handle.backbone.layers[handle.layer])
    _check_span(settings, image_tokens, call, model)
    _check_strength(settings, getattr(model, "dtype", None), update.multiplier)
    earlier = handle.conversations.recall(call, (handle.layer, settings.pool, settings.span))
    with_image = call.rows_with_image(image_tokens)
    contrast = None
    if any(settings.rows["contrast"]):
        place = settings.contrast_first_layer, settings.contrast_after
        contrast = open_contrast(handle.backbone, call, image_tokens, settings.rows["contrast"], *place)
        contrast.contrast_map = handle.contrast_map
    pooled, unread, continued = None, 0, 0
    if earlier is not None:
        with_image = [any(pair) for pair in zip(with_image, earlier.images_of(len(with_image)), strict=True)]
        # A call that only repeats what was emitted goes on with its answer: there is no new prompt in it.
        pooled, unread, continued = earlier.pooled, earlier.unread(call), earlier.continued(call)
        if contrast is not None:
            contrast.pending += [images.expanded(len(with_image), continued) for images in earlier.pending]
    if not all(with_image) and not settings.force and call.rudder is not False:
        _warn_without_image(with_image)
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
        multiplier=update.multiplier,
        pooled=pooled,
        skip=unread,
        traced=call.traced,
        card_map=handle.card_map,
        contrast=contrast,
    )


def _check_span(settings: CallSettings, image_tokens: tuple[int, ...], call: Call, model: nn.Module) -> None:
    """Refuse a span that cannot be told from the prompt."""
    if settings.span == "prompt":
        return
    if not image_tokens:
        raise ValueError(
            f"span={settings.span!r} needs a model whose config names its image token; {type(model).__name__} does "
            "not. Use span='prompt'."
        )
    if call.input_ids is None:
        raise ValueError(f"span={settings.span!r} needs input_ids to tell image from text, or use span='prompt'.")


def _check_strength(settings: CallSettings, dtype: torch.dtype | None, multiplier: float) -> None:
    """Refuse a push that a half-precision model cannot hold, and that would end in tokens made of NaN."""
    strongest = max(settings.rows["alpha_max"], default=0.0)
    if dtype is None or not dtype.is_floating_point:
        return
    # The push is added before the layer applies its factor.
    longest = torch.finfo(dtype).max * multiplier
    if strongest > longest:
        raise ValueError(
            f"RUDDER setting `alpha_max` is {strongest:g}, but the model's {dtype} has room for a push up to "
            f"{longest:g}: choose less, or load the model in another dtype."
        )


def _warn_without_image(rows: list[bool]) -> None:
    """Say that prompts without an image are left unsteered."""
    which = "The prompt has" if rows == [False] else f"{rows.count(False)} of {len(rows)} prompts have"
    warn(
        f"{which} no image, so there is no visual evidence to anchor to: left unsteered. "
        "Pass rudder={'force': True} to steer all the same, or rudder=False to silence this."
    )


def _warn_one_token(call: Call, state: GenerationState, sequences: Tensor) -> None:
    """Say where no answer could change: each is its first token alone, which is not steered."""
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
    contrast = state.contrast
    if contrast is not None and contrast.uncached and input_ids.shape[1] >= state.prompt_length + contrast.after:
        return _prepare_after_edit(self, state, contrast, prepare, input_ids, kwargs)
    return _planned(state, prepare(input_ids, *args, **kwargs), input_ids, kwargs)


def _planned(state: GenerationState, inputs: dict[str, Any], ids: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a forward, planned, with the state among them."""
    embeds = inputs.get("inputs_embeds")
    query_length = (inputs["input_ids"] if embeds is None else embeds).shape[1]
    cached = inputs.get("past_key_values") is not None and kwargs.get("use_cache") is not False
    state.plan(ids, query_length, kwargs.get("attention_mask"), cached)
    if state.contrast is not None and not state.contrast.uncached:
        generated = max(ids.shape[1] - state.prompt_length, 0)
        state.contrast.before_forward(inputs.get("past_key_values") if cached else None, generated, query_length)
    inputs[STATE_KEY] = state
    return inputs


def _prepare_after_edit(
    self: Any,
    state: GenerationState,
    contrast: ImageContrast,
    prepare: Callable[..., Any],
    ids: Tensor,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The inputs of a forward without a cache that comes after the place of the contrast.

    Its positions before that place read the image's values as they are, the others as edited. So the former run here,
    into a cache of this forward alone, and the latter are what is left to forward.
    """
    cut = state.prompt_length + contrast.after - 1
    cache = DynamicCache(config=self.config.get_text_config(decoder=True))
    first = {**kwargs, "past_key_values": cache, "is_first_iteration": True}
    first |= {name: kwargs[name][..., :cut] for name in _ALONG_IDS if isinstance(kwargs.get(name), Tensor)}
    self(**_planned(state, prepare(ids[:, :cut], **first), ids[:, :cut], first))
    state.observed = None  # These positions were observed when they emitted a token.
    contrast.before_forward(cache, contrast.after, 1)
    rest = {**kwargs, "past_key_values": cache, "is_first_iteration": False, "use_cache": True}
    rest["next_sequence_length"] = ids.shape[1] - cut
    return _planned(state, {**prepare(ids, **rest), "use_cache": False}, ids, kwargs)


def get_candidate_generator(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The generator of candidates for assisted decoding and prompt lookup, which stops where the contrast is applied.

    A forward that verifies candidates reads one cache, so that it cannot have some before the edit and some after it.
    """
    generator, running = _original(self, "_get_candidate_generator")(*args, **kwargs), _RUNNING.get()
    if running is None or running[0] is not handle_of(self) or not isinstance(running[1], GenerationState):
        return generator
    if running[1].contrast is not None:
        generator.get_candidates = functools.partial(_candidates, running[1], generator.get_candidates)
    return generator


def _candidates(
    state: GenerationState, get: Callable[..., Any], input_ids: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Candidates up to the contrast, with their logits if there are some."""
    ids, logits = get(input_ids, *args, **kwargs)
    longest = None if state.contrast is None else state.contrast.longest(input_ids.shape[1], state.prompt_length)
    if longest is None:
        return ids, logits
    kept = min(longest, ids.shape[1]) - input_ids.shape[1]
    return ids[:, : input_ids.shape[1] + kept], None if logits is None or kept == 0 else logits[:, :kept]


def refuse_continuous_batching(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Say why continuous batching is not steered."""
    raise ValueError(
        "RUDDER does not steer continuous batching: it bypasses the generation loop. Use `generate`, or remove RUDDER "
        "from the model first."
    )
