"""`generate` and `prepare_inputs_for_generation` of a steered model: the stock methods, with a state around them.

They are bound to the steered instance, which holds its handle. What runs is a context variable, so that threads and
nested calls have their own: the call that a model delegates to its language model, or the state of the generation.
Beside a key-value cache that goes on it is remembered what earlier prompts were pooled to.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .call import CONTINUOUS_BATCHING, Call, Override, resolve_settings
from .contrast import contrast_error, open_contrast
from .errors import warn
from .hooks import STATE_KEY, clear_slot
from .state import GenerationState, lay_out_trace

HANDLE_NAME = "_rudder_handle"
RUNNING: ContextVar[tuple[Any, Call | GenerationState | None]] = ContextVar("rudder_running", default=(None, None))


def handle_of(model: nn.Module) -> Any:
    """Return the handle of a steered model or of the language model in it; None if it is not steered (any more)."""
    return vars(model).get(HANDLE_NAME)


def _original(model: nn.Module, name: str) -> Callable[..., Any]:
    """Return the method that RUDDER's replaces; also for a bound method that was kept beyond `remove()`."""
    handle = handle_of(model)
    # What the user had put on the instance before RUDDER was installed.
    saved = None if handle is None else handle.saved.get((model, name))
    return types.MethodType(getattr(type(model), name), model) if saved is None else saved


@contextmanager
def _running(handle: Any = None, what: Call | GenerationState | None = None) -> Iterator[None]:
    """Run a block under a call or a generation of a handle, and leave nothing of it behind."""
    token = RUNNING.set((handle, what))
    try:
        yield
    finally:
        RUNNING.reset(token)
        clear_slot()


def steered_generate(
    self: Any, *args: Any, rudder: Override = None, output_rudder: bool | None = None, **kwargs: Any
) -> Any:
    """`generate` of a steered model: the stock method, with the state of this generation around it."""
    handle, original = handle_of(self), _original(self, "generate")
    if handle is None:
        return original(*args, **kwargs)
    call = Call(self, args, kwargs, False if handle.disabled_blocks else rudder, output_rudder)
    with handle.running():
        # Another thread may have removed RUDDER since the first line.
        return run(handle, call if handle.installed else None, original, args, kwargs)


def generate_inner(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`generate` of a language model that a steered model delegates to, or of a model that other calls have borrowed.

    Steered as part of a call that delegates to it; otherwise stock, also within a generation of the model around it.
    """
    handle, (owner, outer), call = handle_of(self), RUNNING.get(), None
    if owner is handle and isinstance(outer, Call):
        # The arguments of this call, for what was asked of the one around it.
        call = Call(self, args, kwargs, traced=outer.traced)
        call.rudder, call.has_images = outer.rudder, outer.has_images
    return run(handle, call, _original(self, "generate"), args, kwargs)


def run(handle: Any, call: Call | None, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a stock `generate` for a call: steered, delegated, or (without a call) as if RUDDER were not there."""
    if call is None or (call.rudder is False and not call.traced):
        # Also here: a generation around this one must not reach into it.
        with _running():
            return original(*args, **kwargs)
    call.refuse_unsupported()
    if call.model is not handle.backbone.loop:
        with _running(handle, call):
            return original(*args, **kwargs)
    state = open_generation(handle, call)
    with _running(handle, state):
        output = original(*args, **kwargs)
    if state is None:
        return output
    state.finish_forward()
    if not state.forwards:
        raise RuntimeError(
            "RUDDER cannot steer a decoding method without `prepare_inputs_for_generation`. Pass rudder=False."
        )
    remember(handle.conversations, call, state, output)
    state.warn_too_strong()
    _warn_one_token(call, state, getattr(output, "sequences", output))
    if call.traced:
        record = {"layer": state.layer, **state.settings.record()}
        output["rudder"] = lay_out_trace(state.steps, call, output, state.card, record)
        output["rudder"].contrast = [] if state.contrast is None else state.contrast.edited
    return output


def open_generation(handle: Any, call: Call) -> GenerationState | None:
    """Create the state for one `generate` call, or None if nothing will be steered or traced."""
    backbone, image_tokens = handle.backbone, handle.image_tokens
    settings = resolve_settings(handle.config, call.rudder, call.batch, handle.layer, len(backbone.layers))
    if settings.span != "prompt" and (call.input_ids is None or not image_tokens):
        raise ValueError(
            f"span={settings.span!r} needs input_ids and an image token in the model's config. Use span='prompt'."
        )
    earlier = recall(handle.conversations, call, (handle.layer, settings.pool, settings.span))
    with_image = call.rows_with_image(image_tokens)
    contrast = open_contrast(backbone, call, image_tokens, settings, handle.contrast_map)
    pooled, unread, continued = None, 0, 0
    if earlier is not None:
        with_image = earlier.add_images(with_image)
        # A call that only repeats what was emitted continues its answer: there is no new prompt in it.
        pooled, unread, continued = earlier.pooled, earlier.unread(call), earlier.continued(call)
        if contrast is not None and earlier.contrast_pending:
            raise contrast_error(
                f"the answer of an earlier turn ended before `contrast_after` ({settings.contrast_after}) tokens, so "
                "the cache holds image values that are still to be edited",
                "Begin with a new cache or let the earlier turn answer longer. ",
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
    rows = [settings.is_steered(row) and (image or settings.force) for row, image in enumerate(state.with_image)]
    if settings.steer_first_token or state.continued or new.shape[1] > 2 or not any(rows):
        return
    ends = torch.as_tensor(call.option("eos_token_id", []), dtype=torch.long, device=new.device)
    if bool(torch.isin(new[:, 1:], ends).all()):
        warn(
            "The answer is a single token, and the first token is not steered: RUDDER could not change it. "
            "The setting steer_first_token=True steers it too."
        )


def prepare_inputs_for_generation(self: nn.Module, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Plan the coming forward and hand the state down with its inputs."""
    owner, state = RUNNING.get()
    inputs: dict[str, Any] = _original(self, "prepare_inputs_for_generation")(input_ids, *args, **kwargs)
    if owner is not handle_of(self) or not isinstance(state, GenerationState):
        return inputs
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
    """Raise: continuous batching is not steered."""
    raise ValueError(CONTINUOUS_BATCHING)


@dataclass(frozen=True)
class Conversation:
    """What the prompts that a cache holds were pooled to."""

    reading: tuple[int, str, str]  # layer, pooling and span that they were read with
    start: int  # positions of the cache up to the end of the last prompt
    end: int  # positions up to the end of its answer, as far as the cache holds it
    pooled: Tensor  # sum of the updates for each prompt, (prompts, hidden size), which its beams and sequences share
    with_image: list[bool]  # for each prompt
    # Tokens of the returned sequences, (prompts * sequences, new tokens). The last one is emitted but not forwarded.
    answer: Tensor
    contrast_pending: bool = False  # whether values of an image are still to be contrasted

    def covers(self, call: Call, reading: tuple[int, str, str]) -> bool:
        """Return whether every prompt token in the cache of a call was read, the same way, for the same rows."""
        # A cache may have been cropped within the last answer, but not into a prompt, nor have grown since.
        in_answer = self.start <= call.cached_length <= self.end
        return self.reading == reading and in_answer and call.batch % len(self.with_image) == 0

    def unread(self, call: Call) -> int:
        """Return how many positions at the start of a call's prompt belong to the earlier answer: its last token."""
        return self.start + self.answer.shape[1] - self.end if self.end == call.cached_length else 0

    def continued(self, call: Call) -> int:
        """Return how many answer tokens a call repeats in order to continue them; 0 if it brings a new prompt."""
        repeated = self.start + self.answer.shape[1] - call.cached_length
        if call.input_ids is None or not 0 < repeated == call.remaining_prompt:
            return 0
        prompts = len(self.with_image)
        asked = call.input_ids[:, -repeated:].reshape(prompts, -1, 1, repeated)
        known = self.answer[:, -repeated:].reshape(prompts, 1, -1, repeated).to(asked.device)
        # Each row continues any of the sequences that were returned for its prompt.
        return repeated if bool((asked == known).all(-1).any(-1).all()) else 0

    def add_images(self, with_image: list[bool]) -> list[bool]:
        """Return for each row of a call whether its own prompt or an earlier one had an image."""
        each = len(with_image) // len(self.with_image)
        return [image or self.with_image[row // each] for row, image in enumerate(with_image)]


Conversations = weakref.WeakKeyDictionary[Any, Conversation]
"""What was read into each cache, for as long as the cache lives. Nothing is written onto it."""


def recall(conversations: Conversations, call: Call, reading: tuple[int, str, str]) -> Conversation | None:
    """Return what earlier prompts of a reused cache were pooled to; warn if they were not all read, or differently."""
    if call.cached_length == 0:
        return None
    found = conversations.get(call.cache)
    if found is not None and found.covers(call, reading):
        return found
    warn(
        f"The cache ({call.cached_length} positions) holds prompt tokens that RUDDER did not read, or read with other "
        "settings or for other rows: CARD is pooled from the new ones alone."
    )
    return None


def remember(conversations: Conversations, call: Call, state: GenerationState, output: Any) -> None:
    """Keep the pooled sum for the next turn on the same cache."""
    cache = call.cache if call.cache is not None else getattr(output, "past_key_values", None)
    if cache is None or state.pooled is None:
        return
    sequences = output if isinstance(output, Tensor) else output.sequences
    conversations[cache] = Conversation(
        reading=(state.layer, state.settings.pool, state.settings.span),
        start=call.cached_length + call.remaining_prompt,
        end=int(cache.get_seq_length()),
        pooled=state.pooled[:: state.pooled.shape[0] // len(state.with_image)],
        with_image=state.with_image,
        answer=sequences[:, call.prompt_length :],
        contrast_pending=state.contrast is not None and bool(state.contrast.images),
    )
