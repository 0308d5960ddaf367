"""All settings of a layer at once: pictures are prefilled once, and every setting is a row decoded from a copy.

The prefill does not depend on strength, gate, pool or span, so its cache is shared; only the position that emits the
first answer token does, for settings that steer it, and it alone is forwarded again, row by row. What the unsteered
model thinks of an answer (its log-likelihood, given the picture) is read off the same cache.

```python
with SettingsDecoder(model, layer=2) as decoder:
    decoded = decoder(inputs, [VANILLA, Setting(alpha_max=5.0, k=2.0)], max_new_tokens=64)
decoded[0][1].tokens  # of the first picture, with the second setting
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import attention_update, find_backbone, forwards_keywords, image_token_ids, resolve_layer
from ..core.generate import handle_of
from ..core.hooks import LayerHooks, clear_slot
from .prompts import Prompt, read_prompt
from .settings import Setting
from .steering import SettingsState

# Rows that have ended leave the batch when less than this share goes on: leaving copies the cache of all others.
_CROWDED = 0.85
# Largest table of logits made while answers are scored, in entries.
_SCORE_ENTRIES = 2**25


@dataclass(frozen=True)
class Decoded:
    """One answer.

    Attributes:
        tokens: What was generated, the end-of-sequence token included if it was reached.
        nll: Negative log-likelihood of the tokens under the unsteered model, summed; None if it was not asked for.
        contrast: The same, given the next picture of the batch instead of its own; None if it was not asked for.
    """

    tokens: tuple[int, ...]
    nll: float | None = None
    contrast: float | None = None


class SettingsDecoder:
    """Decodes batches of pictures under many settings of one layer; a context manager that leaves no trace.

    Args:
        model: A stock vision-language model, not steered by RUDDER.
        layer: The decoder layer, negative counts from the end.

    Raises:
        UnsupportedModelError: The model cannot be steered, with the reason.
        ValueError: The layer does not exist, or the model is steered already.
    """

    def __init__(self, model: nn.Module, layer: int) -> None:
        self.backbone = find_backbone(model)
        self.layer = resolve_layer(self.backbone, layer)
        self._hooks: list[Any] = []

    def __enter__(self) -> SettingsDecoder:
        if handle_of(self.backbone.model) is not None:
            raise ValueError("this model is steered by RUDDER already; calibrate the stock model (`.unwrap()`)")
        layer = self.backbone.layers[self.layer]
        hooks = LayerHooks(self.layer, forwards_keywords(self.backbone, layer))
        self._hooks = hooks.install(self.backbone.loop, layer, attention_update(layer))
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        clear_slot()

    @torch.no_grad()
    def __call__(
        self,
        inputs: Mapping[str, Any],
        settings: Sequence[Setting],
        *,
        rows: int | None = None,
        score: bool = False,
        contrast: bool = False,
        shuffled: bool = False,
        **options: Any,
    ) -> list[list[Decoded]]:
        """Answers of every picture under every setting, greedy.

        Args:
            inputs: What the processor makes of a batch of prompts with one picture or more, left-padded.
            settings: The settings.
            rows: Largest batch to decode; more settings than fit are decoded in several turns from the same prefill.
            score: Whether to compute `Decoded.nll`.
            contrast: Whether to compute `Decoded.contrast`; the last picture then only serves as a contrast and gets
                no answers.
            shuffled: The control: each picture is steered by the CARD of the next one; the last only lends its own.
            options: For `generate`, such as `max_new_tokens`.

        Returns:
            For each picture one answer per setting.
        """
        if not self._hooks:
            raise RuntimeError("enter the decoder first: `with SettingsDecoder(model, layer) as decoder: ...`")
        for name in ("num_beams", "num_return_sequences"):
            if options.get(name, 1) != 1:
                raise ValueError(f"{name} is {options[name]}; calibration decodes greedily")
        if not settings:
            return []
        update = attention_update(self.backbone.layers[self.layer])
        readings = list(dict.fromkeys(setting.reading for setting in settings))
        state = SettingsState(self.layer, update.multiplier, readings, image_token_ids(self.backbone.model))
        task = _Task(state, list(settings), rows, score, contrast, shuffled)
        # Whatever the model's own defaults are: one deterministic answer, from a cache that grows.
        fixed = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "cache_implementation": "dynamic"}
        fixed |= {"return_dict_in_generate": False, "use_cache": True, "custom_generate": task.run}
        model: Any = self.backbone.model
        model.generate(**inputs, **{**options, **fixed})
        return task.answers


class _Task:
    """One call of `generate` whose token loop is ours."""

    def __init__(
        self,
        state: SettingsState,
        settings: list[Setting],
        rows: int | None,
        score: bool,
        contrast: bool,
        shuffled: bool,
    ) -> None:
        self.state = state
        self.settings = settings
        self.rows = rows
        self.score = score
        self.contrast = contrast
        self.shuffled = shuffled
        self.answers: list[list[Decoded]] = []

    def run(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **kwargs: Any,
    ) -> Tensor:
        """The decoding method that `generate` calls after it has prepared everything."""
        prompt = read_prompt(model, self.state, input_ids, kwargs, any(map(_steers_prompt, self.settings)))
        pictures = prompt.batch - int(self.contrast or self.shuffled)
        if pictures < 1:
            raise ValueError("a contrast, or the CARD of another picture, needs at least two pictures in the batch")
        self.answers = [[] for _ in range(pictures)]
        first = int(self.shuffled)
        for reading, pooled in self.state.pooled.items():
            self.state.pooled[reading] = pooled[first : first + pictures]
        size = max(1, (self.rows or pictures * len(self.settings)) // pictures)
        for start in range(0, len(self.settings), size):
            part = self.settings[start : start + size]
            rows = torch.arange(pictures, device=input_ids.device).repeat_interleave(len(part))
            tokens, lengths = _decode(prompt, rows, part, self.state, logits_processor, stopping_criteria)
            scores = [_scores(prompt, rows, tokens, lengths) if self.score else None]
            scores.append(_scores(prompt, rows + 1, tokens, lengths) if self.contrast else None)
            for row, (answer, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
                own, other = (None if values is None else float(values[row]) for values in scores)
                self.answers[row // len(part)].append(Decoded(tuple(answer[:length]), own, other))
        return input_ids


def _decode(
    prompt: Prompt,
    rows: Tensor,
    settings: Sequence[Setting],
    state: SettingsState,
    logits_processor: Any,
    stopping_criteria: Any,
) -> tuple[Tensor, Tensor]:
    """Greedy search, as `generate` does it, on rows that are steered differently.

    Rows that have ended leave the batch, some at a time: nobody looks at what they would still write.

    Returns:
        New tokens (rows, longest answer), 0 after the end of a row, and each row's number of them.
    """
    running = prompt.rows(rows)
    if any(map(_steers_prompt, settings)):
        state.spread(settings, first_token=True)
        logits = running.repeat_last(state)
    else:
        logits = prompt.logits[rows]
    state.spread(settings)
    start = running.input_ids.shape[1]
    written: list[tuple[Tensor, Tensor]] = []
    places = torch.arange(len(rows), device=rows.device)
    ended = torch.zeros_like(places, dtype=torch.bool)
    while True:
        tokens = logits_processor(running.input_ids, logits).argmax(-1)
        running.append(tokens)
        written.append((places[~ended], tokens[~ended]))
        ended = ended | stopping_criteria(running.input_ids, None)
        left = (~ended).nonzero().squeeze(1)
        if len(left) == 0:
            return _lay_out(written, len(rows), running.input_ids.shape[1] - start)
        if len(left) <= _CROWDED * len(places):
            running.keep(left)
            state.keep(left)
            places, ended = places[left], ended[left]
        logits = running.step(state)


def _steers_prompt(setting: Setting) -> bool:
    return setting.steer_first_token and setting.alpha_max > 0


def _lay_out(written: list[tuple[Tensor, Tensor]], rows: int, longest: int) -> tuple[Tensor, Tensor]:
    """One line per row from the tokens of each step and the rows that were still running."""
    tokens = torch.zeros(rows, longest, dtype=torch.long, device=written[0][1].device)
    lengths = torch.zeros(rows, dtype=torch.long, device=tokens.device)
    for step, (alive, chosen) in enumerate(written):
        tokens[alive, step] = chosen
        lengths[alive] = step + 1
    return tokens, lengths


def _scores(prompt: Prompt, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """`_score`, once for answers to the same picture that are the same: neighbouring settings often agree."""
    first: dict[tuple[int, ...], int] = {}
    distinct: list[int] = []
    same: list[int] = []
    for row, (picture, answer, length) in enumerate(
        zip(rows.tolist(), tokens.tolist(), lengths.tolist(), strict=True)
    ):
        place = first.setdefault((picture, *answer[:length]), len(distinct))
        if place == len(distinct):
            distinct.append(row)
        same.append(place)
    kept = torch.tensor(distinct, device=rows.device)
    return _score(prompt, rows[kept], tokens[kept], lengths[kept])[torch.tensor(same, device=rows.device)]


def _score(prompt: Prompt, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Negative log-likelihood of answers under the unsteered model, (rows,), in pieces that fit into memory."""
    size = max(1, _SCORE_ENTRIES // (tokens.shape[1] * prompt.logits.shape[1]))
    pieces = []
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        reader = prompt.rows(rows[part])
        logits = torch.cat([prompt.logits[rows[part]].unsqueeze(1), reader.read_on(tokens[part, :-1])], dim=1)
        # One row at a time: the float32 copy of all logits would be another large table.
        likelihood = torch.stack([
            row.float().log_softmax(-1).gather(-1, answer.unsqueeze(-1)).squeeze(-1)
            for row, answer in zip(logits, tokens[part], strict=True)
        ])  # fmt: skip
        counts = torch.arange(tokens.shape[1], device=tokens.device) < lengths[part, None]
        pieces.append(-torch.where(counts, likelihood, 0.0).double().sum(1))
    return torch.cat(pieces)
