"""The state of one generation: which positions are prompt and which are answer, the pooled sum, CARD, the trace.

A fresh `GenerationState` lives from the start to the end of one `generate` call and is handed down as an argument, so
that threads and nested calls cannot meet. `plan` runs before each forward, outside of any compiled graph; `steer` runs
inside the target layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .call import CallSettings
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
from .trace import TraceRecorder

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
        self.recorder = TraceRecorder()
        # Set while the prompt is read, before anything is steered.
        self.card: Tensor
        self.strength: Tensor
        self.constants: StepConstants | None = None
        self._read_in_graph = False
        # Length of the hidden state at the last prompt position, (rows, 1, 1).
        self._hidden_norm: Tensor | None = None
        # The plan of the coming forward.
        self.forwards = 0
        self.fired = False
        self.idle = False
        self.query_length = 0
        self.prompt_span = (0, 0)
        self.prompt_weights: Tensor | None = None
        self.steer_count = 0
        self.watch_count = 0
        self.first_token = 0
        self.observed: tuple[Tensor, Tensor, Tensor] | None = None
        self._observe_newest_only = False
        self._prompt_seen = 0

    @property
    def reading(self) -> tuple[int, str, str]:
        """Return layer, pooling and span that the prompt is read with."""
        return self.layer, self.settings.pool, self.settings.span

    def plan(self, input_ids: Tensor, query_length: int, attention_mask: Any, cached: bool) -> None:
        """Decide what each position of the coming forward is.

        The last positions of a forward are answer, as many as `input_ids` is longer than the prompt was; the others
        are prompt. That holds for single steps, candidates of assisted decoding, chunks, and without a cache.

        Args:
            input_ids: All ids so far, or the chunk's ids in a chunked prefill, (rows, length).
            query_length: Number of positions of the forward.
            attention_mask: The two-dimensional mask over all positions so far, or None if nothing is masked.
            cached: Whether earlier positions come from a cache; without one every forward repeats the prompt.
        """
        self.finish_forward()
        self.check_fired()
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
        self.steer_count = answer + int(has_last_prompt and self.settings.steer_first_token)
        if self.contrast_alone:
            self.steer_count = 0
        # The trace has the last prompt position, which emits the first token, also where it is not steered.
        self.watch_count = answer + int(has_last_prompt) if self.traced else 0
        self.first_token = generated - self.continued - (self.watch_count - 1)
        # A forward without anything to read or steer does not need the hook.
        self.idle = self.contrast_alone and not new and not self.watch_count
        self.fired = self.idle
        # Without a cache earlier positions are seen again, with beams in another order than when they emitted tokens.
        self._observe_newest_only = not cached

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

    def check_fired(self) -> None:
        """Raise if the last forward did not pass through the target layer's hook."""
        if self.forwards and not self.fired:
            raise RuntimeError(
                "RUDDER's hook did not run in a forward of this generation, so the output would be unsteered. "
                "The model was compiled in a way that leaves the hooks out: before attaching, in parts, or although "
                "its forward does not hand keyword arguments to its layers. Compile after attaching (static caches do "
                "so by themselves), or pass rudder=False."
            )

    def finish_forward(self) -> None:
        """Record what the last forward produced: constants of a compiled prefill, and what the trace observed."""
        if self._read_in_graph:
            self._copy_from_graph()
        if self.observed is None:
            return
        observed, first_token = self.observed, self.first_token
        if self._observe_newest_only:
            first_token += observed[0].shape[1] - 1
            observed = (observed[0][:, -1:], observed[1][:, -1:], observed[2][:, -1:])
        self.recorder.add(first_token, observed)
        self.observed = None

    def _copy_from_graph(self) -> None:
        """Copy the outputs of a compiled prefill: with CUDA graphs, the next replay may write over them."""
        assert self.pooled is not None
        assert self.constants is not None
        self.pooled, self.card, self.strength = self.pooled.clone(), self.card.clone(), self.strength.clone()
        self.constants = StepConstants(*(part.clone() for part in self.constants))
        self._hidden_norm = None if self._hidden_norm is None else self._hidden_norm.clone()
        self._read_in_graph = False

    def warn_too_strong(self) -> None:
        """Warn if the longest push is more than twice as long as the hidden state that it is added to.

        To be called after the generation: comparing numbers of the device waits for it.
        """
        if self._hidden_norm is None or self.constants is None:
            return
        if bool((self.strength * self.constants.high > _TOO_STRONG * self._hidden_norm).any()):
            warn(
                f"The push of RUDDER (alpha_max {float(self.strength.max()):g}) is more than twice as long as the "
                f"hidden state in layer {self.layer}: answers lose their sense. Choose a smaller alpha_max; "
                "`rudder calibrate` finds one."
            )

    def steer(self, h: Tensor, update: Tensor) -> Tensor:
        """Read the prompt's updates and steer the answer's, as planned.

        Args:
            h: What entered the layer, (rows, positions, hidden size).
            update: What self-attention adds to it, same shape.

        Returns:
            The update with v_t^steer added at the answer positions; `update` itself is never written to.
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
            if not self.contrast_alone:
                self._hidden_norm = torch.linalg.vector_norm(h[:, -1:].float(), dim=-1, keepdim=True)
        if self.watch_count:
            self._observe(h[:, -self.watch_count :], constants)
        if self.steer_count == 0:
            return update
        if self.steer_count == update.shape[1]:
            return self._push(h, update, constants)
        cut = update.shape[1] - self.steer_count
        return torch.cat([update[:, :cut], self._push(h[:, cut:], update[:, cut:], constants)], dim=1)

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

    def _push(self, h: Tensor, update: Tensor, constants: StepConstants) -> Tensor:
        """Steer every position of `update`."""
        return steer_step(h, update, constants) if self.gated else inject(update, constants.push)

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
        self.observed = (s.squeeze(-1), g.squeeze(-1), (self.strength * g / length).squeeze(-1))
