"""The state of one generation: which positions are prompt and which are answer, the pooled sum, CARD, the trace.

A fresh `GenerationState` lives for one `generate` call and is handed down as an argument, so that threads and nested
calls cannot meet. `plan` runs before each forward, outside of any compiled graph; `steer` inside the target layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .call import Call, CallSettings
from .contrast import ImageContrast
from .errors import warn
from .steering import (
    TINY_NORM,
    StepConstants,
    beta_gate,
    inject,
    pool_updates,
    similarity,
    steer_step,
    step_constants,
    unit,
)

_TOO_STRONG = 2.0  # lengths of the hidden state beyond which a push is warned of

CardMap = Callable[[Tensor, Sequence[bool]], Tensor]
"""Replaces CARD, (rows, hidden size), given for each prompt whether it has an image; rows of a prompt lie together."""


@dataclass(eq=False, kw_only=True)
class GenerationState:
    """Everything RUDDER knows during one `generate`."""

    # Index of the target layer. Its hook reads it, so that a graph compiled for another layer is not reused.
    layer: int
    settings: CallSettings
    with_image: list[bool]  # for each prompt; those without are steered only if the settings force it
    prompt_length: int  # of `input_ids` at the start of `generate`, without tokens of an answer that is continued
    remaining_prompt: int  # positions still to be forwarded; fewer where a cache already holds the prompt's beginning
    continued: int = 0  # tokens of an earlier answer that the call repeats in order to continue it
    image_tokens: tuple[int, ...] = ()  # ids of image placeholders, for spans
    multiplier: float = 1.0  # factor that the layer applies to its attention output
    pooled: Tensor | None = None  # sum of the updates of all prompt spans so far, those of earlier turns included
    skip: int = 0  # positions at the start of the prompt that belong to an earlier answer and are not pooled
    traced: bool = False  # whether to record similarity, gate and push per token
    card_map: CardMap | None = None  # what CARD is replaced by before it is used, for control experiments
    contrast: ImageContrast | None = None  # the edit of the image's cached values, beyond the paper

    def __post_init__(self) -> None:
        self.gated = self.settings.mode == "beta"
        # The contrast alone costs nothing while tokens are decoded.
        self.contrast_alone = self.contrast is not None and not any(self.settings.rows["alpha_max"])
        self.steps: list[tuple[int, Tensor]] = []  # for the trace, see `lay_out_trace`
        # Set while the prompt is read, before anything is steered.
        self.card: Tensor
        self.strength: Tensor
        self.hidden_norm: Tensor  # length of the hidden state at the last prompt position, (rows, 1, 1)
        self.constants: StepConstants | None = None
        self._read_in_graph = False
        # The plan of the coming forward, and what it has left.
        self.fired = self.idle = False
        self.forwards = self.query_length = self._prompt_seen = 0
        self.steer_count = self.watch_count = self.keep_count = self.first_token = 0
        self.prompt_span = (0, 0)
        self.prompt_weights: Tensor | None = None
        self.observed: tuple[Tensor, Tensor, Tensor] | None = None

    def plan(self, input_ids: Tensor, query_length: int, attention_mask: Any, cached: bool) -> None:
        """Decide what each position of the coming forward is.

        The last positions of a forward are answer, as many as `input_ids`, (rows, length), is longer than the prompt
        was; the others are prompt. That holds for single steps, candidates of assisted decoding, chunks of a prefill,
        and without a cache, where every forward repeats the prompt. A 2-D mask is over all positions so far.
        """
        self.finish_forward()
        self.forwards += 1
        self.query_length = query_length
        generated = max(input_ids.shape[1] - self.prompt_length, 0)
        answer = min(generated, query_length)
        prompt = query_length - answer
        new = prompt if cached else max(0, prompt - self._prompt_seen)
        self._prompt_seen += new
        self.remaining_prompt -= new
        self.prompt_span = (prompt - new, prompt)
        self.prompt_weights = self._weights(input_ids, query_length, attention_mask) if new else None
        has_last_prompt = prompt > 0 and self.remaining_prompt <= 0
        steered = answer + int(has_last_prompt and self.settings.steer_first_token)
        self.steer_count = 0 if self.contrast_alone else steered
        # The trace has the last prompt position, which emits the first token, also where it is not steered.
        self.watch_count = answer + int(has_last_prompt) if self.traced else 0
        # Without a cache earlier positions are seen again, with beams in another order than when they emitted tokens.
        self.keep_count = self.watch_count if cached else min(self.watch_count, 1)
        self.first_token = generated - self.continued - (self.keep_count - 1)
        # A forward without anything to read or steer does not need the hook.
        self.idle = self.contrast_alone and not new and not self.watch_count
        self.fired = self.idle

    def _weights(self, input_ids: Tensor, query_length: int, attention_mask: Any) -> Tensor | None:
        """Return 1 for the new prompt positions that count for CARD, else 0; None if all of them count."""
        start, stop = self.prompt_span
        weights: Tensor | None = None
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            # A view: the memory that RUDDER needs must not grow with the prompt.
            weights = attention_mask[:, -query_length:][:, start:stop]
        if self.skip:
            start_of_answer = torch.ones(input_ids.shape[0], stop - start, device=input_ids.device)
            start_of_answer[:, : self.skip] = 0
            weights = start_of_answer if weights is None else weights.to(input_ids.device) * start_of_answer
            self.skip = 0
        if self.settings.span != "prompt":
            ids = input_ids[:, -query_length:][:, start:stop]
            is_image = torch.isin(ids, torch.tensor(self.image_tokens, device=ids.device))
            in_span = is_image if self.settings.span == "image" else ~is_image
            weights = in_span if weights is None else (weights.to(ids.device) > 0) & in_span
        return weights

    def finish_forward(self) -> None:
        """Record what the last forward produced; raise if it did not pass through the target layer's hook."""
        if self._read_in_graph:
            # The outputs of a compiled prefill: with CUDA graphs, the next replay may write over them.
            self._read_in_graph = False
            for name in ("pooled", "card", "strength", "hidden_norm"):
                setattr(self, name, getattr(self, name).clone())
            assert self.constants is not None
            self.constants = StepConstants(*(part.clone() for part in self.constants))
        if self.observed is not None:
            self.steps.append((self.first_token, torch.stack(self.observed).detach().float()))
            self.observed = None
        if self.forwards and not self.fired:
            raise RuntimeError(
                "RUDDER's hook did not run in a forward, so the output would be unsteered: the model was compiled in "
                "a way that leaves the hooks out (before attaching, in parts, or with layers that get no keywords). "
                "Compile after attaching (static caches do so by themselves), or pass rudder=False."
            )

    def warn_too_strong(self) -> None:
        """Warn, after the generation, if the longest push is more than twice as long as the hidden state."""
        # Comparing numbers of the device waits for it.
        high = None if self.constants is None else self.constants.high
        if high is not None and bool((self.strength * high > _TOO_STRONG * self.hidden_norm).any()):
            warn(
                f"The push of RUDDER (alpha_max {float(self.strength.max()):g}) is more than twice as long as the "
                f"hidden state in layer {self.layer}: answers lose their sense. Choose a smaller alpha_max; "
                "`rudder calibrate` finds one."
            )

    def steer(self, h: Tensor, update: Tensor) -> Tensor:
        """Read the prompt's updates and steer the answer's, as planned.

        `h` is what entered the layer and `update` what self-attention adds to it, (rows, positions, hidden size). The
        update is returned with v_t^steer at the answer positions; `update` itself is never written to.
        """
        self.fired = True
        if update.shape[1] != self.query_length:
            raise RuntimeError(
                f"RUDDER planned {self.query_length} positions for this forward but its layer sees {update.shape[1]}: "
                "this model changes the length of the prompt inside its forward and cannot be steered."
            )
        if h.device != update.device:
            h = h.to(update.device)
        if torch.is_autocast_enabled(update.device.type):
            # Autocast would take the matrix products down to half precision.
            with torch.autocast(update.device.type, enabled=False):
                return self._steer(h, update)
        return self._steer(h, update)

    def _steer(self, h: Tensor, update: Tensor) -> Tensor:
        constants = self.constants
        if constants is None or self.prompt_span[1] > self.prompt_span[0]:
            constants = self._read(update)
            self.hidden_norm = torch.linalg.vector_norm(h[:, -1:].float(), dim=-1, keepdim=True)
        if self.watch_count:
            self._observe(h[:, -self.watch_count :], constants)
        if self.steer_count == 0:
            return update
        cut = update.shape[1] - self.steer_count
        h, answer = (h[:, cut:], update[:, cut:]) if cut else (h, update)
        steered = steer_step(h, answer, constants) if self.gated else inject(answer, constants.push)
        return torch.cat([update[:, :cut], steered], dim=1) if cut else steered

    def _read(self, update: Tensor) -> StepConstants:
        """Add the new prompt positions to the pooled sum and fold CARD into the constants of the coming steps."""
        start, stop = self.prompt_span
        rows = update.shape[0]
        total = pool_updates(update[:, start:stop], self.prompt_weights, self.settings.pool)
        self.prompt_weights = None
        if self.pooled is not None:
            earlier = self.pooled.to(total.device)
            total = total + earlier.repeat_interleave(rows // earlier.shape[0], dim=0)
        self.pooled = total
        self.card = unit(total)
        if self.card_map is not None:
            self.card = self.card_map(self.card, self.with_image)
        settings = torch.tensor(self.settings.push_rows(), dtype=torch.float32)
        if not self.settings.force:
            settings[:, 0] *= torch.tensor(self.with_image)
        # Beams and return sequences multiply the rows of the batch. One transfer to the device for all settings.
        columns = settings.repeat_interleave(rows // len(settings), dim=0).to(total.device).unbind(dim=1)
        self.strength = columns[0][:, None, None]
        constants = step_constants(self.card, *columns)
        push = constants.push if self.gated else constants.push * constants.high
        self.constants = constants._replace(push=push / self.multiplier)
        self._read_in_graph = torch.compiler.is_compiling()
        return self.constants

    def _observe(self, h: Tensor, constants: StepConstants) -> None:
        """Keep similarity, gate and relative push of the positions that emit tokens until `finish_forward`."""
        column, _, *gate = constants
        s = similarity(h, column)
        g = beta_gate(s, *gate) if self.gated else constants.high.expand_as(s)
        g = g.masked_fill(self.strength <= 0, 0.0)
        if self.watch_count > self.steer_count:
            # The last prompt position, which is not steered, comes before the answer's.
            g = torch.cat([torch.zeros_like(g[:, :1]), g[:, 1:]], dim=1)
        length = torch.linalg.vector_norm(h.float(), dim=-1, keepdim=True).clamp_min(TINY_NORM)
        kept = [values[:, -self.keep_count :, 0] for values in (s, g, self.strength * g / length)]
        self.observed = (kept[0], kept[1], kept[2])


@dataclass
class RudderTrace:
    """Per-token record of a steered generation. Columns belong to generated tokens, in order.

    Padding after a row's end is NaN.
    """

    card: Tensor  # v_CARD of each row, (rows, hidden size)
    similarity: Tensor  # s_t, the cosine of CARD and the hidden state that emits token t, (rows, new tokens)
    # Share of alpha_max that was applied, (rows, new tokens): g_t, less where the norm cap bound it; 1 in mode "add"
    # without a cap; 0 where nothing was added.
    gate: Tensor
    push: Tensor  # ||v_t^steer|| / ||h_t||, the push relative to the hidden state, (rows, new tokens)
    settings: dict[str, Any] = field(default_factory=dict)  # those in force
    # One entry for each image whose cached values were contrasted: its `prompt`, its `positions` in the cache, the
    # `layers`, and for each of these how far the values `moved`, relative to their norm.
    contrast: list[dict[str, Any]] = field(default_factory=list)


def lay_out_trace(
    steps: list[tuple[int, Tensor]], call: Call, output: Any, card: Tensor, settings: dict[str, Any]
) -> RudderTrace:
    """Make the trace of what a call returned, from v_CARD of each row of its token loop and, of each forward, the
    first token that its positions emit, with similarity, gate and push, (3, rows, n). Of a position that is seen again
    (rejected candidates of assisted decoding) the last sight counts.
    """
    new_ids, beams = output.sequences[:, call.prompt_length :], getattr(output, "beam_indices", None)
    new_tokens = (new_ids if beams is None else beams).shape[1]
    columns = max([new_tokens, *(first + values.shape[2] for first, values in steps)])
    table = card.new_full((3, len(card), columns), torch.nan)
    for first, values in steps:
        # Tokens before the first one were emitted by an earlier call, which this one continues.
        values = values[:, :, max(-first, 0) :]
        table[:, :, max(first, 0) :][:, :, : values.shape[2]] = values
    table = table[:, :, :new_tokens]
    # Observed on the layer's device, which need not be the one that the answer is on.
    if beams is None:
        eos_ids = torch.as_tensor(call.option("eos_token_id", []), dtype=torch.long).flatten().tolist()
        pad_id = call.option("pad_token_id", eos_ids[0] if eos_ids else None)
        ended = after_end(new_ids, eos_ids, None if pad_id is None else int(pad_id)).to(table.device)
    else:
        # Token by token, the beam that each returned sequence came from; -1 marks tokens after the end.
        beams = beams.to(table.device)
        table = table[:, beams.clamp_min(0), torch.arange(new_tokens, device=table.device)]
        card, ended = card[beams[:, 0]], beams < 0
    similarity, gate, push = table.masked_fill(ended, torch.nan)
    return RudderTrace(card, similarity, gate, push, settings)


def after_end(new_ids: Tensor, eos_ids: list[int], pad_id: int | None) -> Tensor:
    """Mark the padding of rows that ended before the others, (rows, new tokens).

    A row ends with its first end-of-sequence token, or where a stopping criterion ended it and padding follows.
    """
    if not eos_ids:
        # Without such a token `generate` does not pad.
        return torch.zeros_like(new_ids, dtype=torch.bool)
    is_eos = torch.isin(new_ids, torch.tensor(eos_ids, device=new_ids.device)).long()
    after = is_eos.cumsum(-1) - is_eos > 0
    if pad_id is not None:
        trailing = (new_ids == pad_id).long().flip(-1).cumprod(-1).flip(-1).bool()
        after = after | (trailing & ~is_eos.bool())
    return after
