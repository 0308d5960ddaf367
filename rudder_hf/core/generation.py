"""From the arguments of a `generate` call to the state of its generation, and from there to its trace."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .backbones import image_token_ids
from .call import Call, Request, warn_without_image
from .configuration import RudderConfig
from .errors import warn
from .settings import CallSettings, Override, resolve_settings
from .state import CardMap, GenerationState
from .trace import RudderTrace, after_end, follow_beams


@dataclass(frozen=True)
class Conversation:
    """What the prompts that a cache holds were pooled to.

    Attributes:
        reading: Layer, pooling and span that they were read with.
        start: Number of positions of the cache up to the end of the last prompt.
        end: Number of positions up to the end of its answer, as far as the cache holds it.
        total: Number of positions with the whole answer; its last token is emitted but not forwarded.
        pooled: Sum of the updates, (rows, hidden size).
        with_image: For each row whether its prompts had an image.
    """

    reading: tuple[int, str, str]
    start: int
    end: int
    total: int
    pooled: Tensor
    with_image: list[bool]

    def covers(self, call: Call, reading: tuple[int, str, str]) -> bool:
        """Whether every prompt token in the cache of a call was read, the same way, for the same rows.

        A cache may have been cropped within the last answer, but not into a prompt, nor have grown since.
        """
        same_rows = call.batch % len(self.with_image) == 0
        return self.reading == reading and self.start <= call.cached_length <= self.end and same_rows


class Conversations:
    """Remembers pooled sums by cache, for as long as the cache lives, without writing anything onto it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_cache: weakref.WeakKeyDictionary[Any, Conversation] = weakref.WeakKeyDictionary()

    def recall(self, call: Call, reading: tuple[int, str, str]) -> Conversation | None:
        """What earlier prompts of a reused cache were pooled to; warns if the cache is full but unknown."""
        if call.cached_length == 0:
            return None
        with self._lock:
            conversation = self._by_cache.get(call.cache)
        if conversation is None or not conversation.covers(call, reading):
            warn(
                f"The cache ({call.cached_length} positions) holds prompt tokens that RUDDER did not read, or "
                "read with other settings or for other rows: CARD is pooled from the new ones alone. Steered calls "
                "that fill the cache pool the whole conversation."
            )
            return None
        return conversation

    def remember(self, cache: Any, call: Call, state: GenerationState, sequences: Tensor) -> None:
        """Keep the pooled sum for the next turn on the same cache."""
        if cache is None or state.pooled is None:
            return
        rows = state.pooled.shape[0]
        start = call.cached_length + call.remaining_prompt
        conversation = Conversation(
            reading=(state.layer, state.settings.pool, state.settings.span),
            start=start,
            end=int(cache.get_seq_length()),
            total=start + sequences.shape[1] - call.prompt_length,
            pooled=state.pooled,
            with_image=_repeat(state.with_image, rows),
        )
        with self._lock:
            self._by_cache[cache] = conversation


def _repeat(values: list[bool], rows: int) -> list[bool]:
    """Each value as often as rows were made of it."""
    return [value for value in values for _ in range(rows // len(values))]


def open_generation(
    model: nn.Module,
    config: RudderConfig,
    layer: int,
    multiplier: float,
    call: Call,
    request: Request,
    conversations: Conversations,
    card_map: CardMap | None = None,
) -> GenerationState | None:
    """The state of a generation; None if nothing is to be steered or traced.

    Args:
        model: The model that users call.
        config: Its settings.
        layer: The installed layer.
        multiplier: Factor that the layer applies to its attention output.
        call: The arguments of the `generate` that runs the loop.
        request: What the caller wants of RUDDER.
        conversations: Pooled sums of caches that are reused.
        card_map: What CARD is replaced by, for control experiments.
    """
    override: Override = {"alpha_max": 0.0} if request.override is False else request.override
    settings = resolve_settings(config, override, call.batch, layer)
    image_tokens = image_token_ids(model)
    _check_span(settings, image_tokens, call, model)
    earlier = conversations.recall(call, (layer, settings.pool, settings.span))
    with_image = call.rows_with_image(image_tokens, request.has_images)
    if earlier is not None:
        before = _repeat(earlier.with_image, len(with_image))
        with_image = [one or other for one, other in zip(with_image, before, strict=True)]
    if not all(with_image) and not settings.force and request.override is not False:
        warn_without_image(with_image)
        if not any(with_image) and not request.output_trace:
            return None
    return GenerationState(
        layer=layer,
        settings=settings,
        with_image=with_image,
        prompt_length=call.prompt_length,
        remaining_prompt=call.remaining_prompt,
        image_tokens=image_tokens,
        multiplier=multiplier,
        pooled=None if earlier is None else earlier.pooled,
        # The answer's last token comes with the new prompt: it is no prompt token.
        skip=earlier.total - earlier.end if earlier is not None and earlier.end == call.cached_length else 0,
        traced=request.output_trace,
        card_map=card_map,
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


def lay_out_trace(call: Call, state: GenerationState, output: Any) -> RudderTrace:
    """The trace along the returned sequences."""
    new_ids = output.sequences[:, call.prompt_length :]
    beams = getattr(output, "beam_indices", None)
    if beams is None:
        eos_ids = torch.as_tensor(call.option("eos_token_id", []), dtype=torch.long).flatten().tolist()
        pad_id = call.option("pad_token_id", eos_ids[0] if eos_ids else None)
        ended = after_end(new_ids, eos_ids, None if pad_id is None else int(pad_id))
        tables = state.recorder.table(new_ids.shape[1])
        # Observed on the layer's device, which need not be the one that the answer is on.
        tables = [table.masked_fill(ended.to(table.device), torch.nan) for table in tables]
        card = state.card
    else:
        tables = [follow_beams(table, beams) for table in state.recorder.table(beams.shape[1])]
        card = state.card[beams[:, 0].to(state.card.device)]
    similarity, gate, push = tables
    settings = {"layer": state.layer, **state.settings.record()}
    return RudderTrace(card=card, similarity=similarity, gate=gate, push=push, settings=settings)
