"""All settings of a layer at once: images are prefilled once, and every setting is a row decoded from a copy.

The prefill does not depend on strength, gate, pool or span, so its cache is shared; only the position that emits the
first answer token does, for settings that steer it, and it alone is forwarded again, row by row. The image-value
contrast, which is not in the paper, edits a row's own copy. How likely an answer is to the unsteered model, given the
image, is read off the same cache.

```python
decoded = decode_settings(model, inputs, [VANILLA, Setting(layer=2, alpha_max=5.0, k=2.0)], max_new_tokens=64)
decoded[0][1].tokens  # of the first image, with the second setting
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import (
    Backbone,
    attention_update,
    find_backbone,
    image_token_ids,
    resolve_layer,
    steerable_layers,
)
from ..core.call import Call
from ..core.contrast import ImageContrast
from ..core.generate import handle_of
from ..core.hooks import clear_slot, install_hooks
from ..core.steering import StepConstants, pool_updates, steer_step, step_constants, unit
from .contrasts import open_contrasts
from .prompts import Prompt, read_prompt
from .settings import Setting

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
        other_nll: The same, given the next image of the batch instead of its own; None if it was not asked for.
    """

    tokens: tuple[int, ...]
    nll: float | None = None
    other_nll: float | None = None


@torch.no_grad()
def decode_settings(
    model: nn.Module,
    inputs: Mapping[str, Any],
    settings: Sequence[Setting],
    *,
    batch_size: int | None = None,
    score: bool = False,
    other_image: bool = False,
    other_card: bool = False,
    **options: Any,
) -> list[list[Decoded]]:
    """Answers to every image under every setting of one layer, greedy; nothing stays on the model.

    Args:
        model: A stock vision-language model, not steered by RUDDER.
        inputs: What the processor makes of a batch of prompts with one image or more, left-padded.
        settings: The settings, `VANILLA` among them or not.
        batch_size: Most rows to decode at a time; more settings than fit are decoded in several turns from the same
            prefill.
        score: Whether to compute `Decoded.nll`.
        other_image: Whether to compute `Decoded.other_nll`; the last image then only serves the one before it and
            gets no answers.
        other_card: The control: each image is steered by the CARD, and contrasted by the values, of the next one; the
            last only lends its own.
        options: For `generate`, such as `max_new_tokens`.

    Returns:
        For each image one answer per setting.

    Raises:
        UnsupportedModelError: The model cannot be steered, with the reason.
        ValueError: The layer does not exist, there are several, or the model is steered already.
    """
    if not settings:
        return []
    for name in ("num_beams", "num_return_sequences"):
        if options.get(name, 1) != 1:
            raise ValueError(f"{name} is {options[name]}; calibration decodes greedily")
    backbone = find_backbone(model)
    if handle_of(backbone.model) is not None:
        raise ValueError("this model is steered by RUDDER already; calibrate the stock model (`.unwrap()`)")
    layers = {setting.layer for setting in settings if setting.alpha_max > 0} or {steerable_layers(backbone)[0]}
    if len(layers) > 1:
        raise ValueError(f"the settings are for the layers {sorted(layers)}; decode one layer at a time")
    index = resolve_layer(backbone, layers.pop())
    multiplier = attention_update(backbone.layers[index]).multiplier
    state = SettingsState(index, multiplier, settings, image_token_ids(backbone.model))
    task = _Task(backbone, state, list(settings), batch_size, score, other_image, other_card)
    # Whatever the model's own defaults are: one deterministic answer, from a cache that grows.
    fixed = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "cache_implementation": "dynamic"}
    fixed |= {"return_dict_in_generate": False, "use_cache": True, "custom_generate": task.run}
    hooks = install_hooks(backbone, index)
    try:
        backbone.model.generate(**inputs, **{**options, **fixed})  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
        clear_slot()
    return task.answers


@dataclass
class _Task:
    """One call of `generate` whose token loop is ours; the fields are the arguments of `decode_settings`."""

    backbone: Backbone
    state: SettingsState
    settings: list[Setting]
    batch_size: int | None
    score: bool
    other_image: bool
    other_card: bool
    answers: list[list[Decoded]] = field(default_factory=list)

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
        call = Call(model, (), {"input_ids": input_ids, **kwargs})
        prompt = read_prompt(model, self.state, input_ids, kwargs, any(map(_steers_prompt, self.settings)))
        images = len(input_ids) - int(self.other_image or self.other_card)
        if images < 1:
            raise ValueError("what needs another image needs at least two images in the batch")
        self.answers = [[] for _ in range(images)]
        first = int(self.other_card)
        for reading, pooled in self.state.pooled.items():
            self.state.pooled[reading] = pooled[first : first + images]
        size = max(1, (self.batch_size or images * len(self.settings)) // images)
        for start in range(0, len(self.settings), size):
            part = self.settings[start : start + size]
            rows = torch.arange(images, device=input_ids.device).repeat_interleave(len(part))
            prompts = self.backbone, call, prompt, self.state.image_tokens
            edits = open_contrasts(*prompts, part, images, self.other_card)
            tokens, lengths = _decode(prompt, rows, part, self.state, edits, logits_processor, stopping_criteria)
            nll = _scores(prompt, rows, tokens, lengths) if self.score else [None] * len(rows)
            other = _scores(prompt, rows + 1, tokens, lengths) if self.other_image else [None] * len(rows)
            for row, (answer, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
                self.answers[row // len(part)].append(Decoded(tuple(answer[:length]), nll[row], other[row]))
        return input_ids


def _decode(
    prompt: Prompt,
    rows: Tensor,
    settings: Sequence[Setting],
    state: SettingsState,
    edits: Sequence[ImageContrast],
    logits_processor: Any,
    stopping_criteria: Any,
) -> tuple[Tensor, Tensor]:
    """Greedy search, as `generate` does it, on rows that are steered differently.

    Rows that have ended leave the batch, some at a time, once every contrast is made: what they would still write is
    of no use.

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
    written: list[Tensor] = []
    lengths = torch.zeros_like(rows)
    places = torch.arange(len(rows), device=rows.device)
    ended = torch.zeros_like(places, dtype=torch.bool)
    while True:
        tokens = logits_processor(running.input_ids, logits).argmax(-1)
        running.append(tokens)
        written.append(torch.zeros_like(rows).index_copy(0, places[~ended], tokens[~ended]))
        lengths[places[~ended]] += 1
        ended = ended | stopping_criteria(running.input_ids, None)
        left = (~ended).nonzero().squeeze(1)
        if len(left) == 0:
            return torch.stack(written, dim=1), lengths
        for edit in edits:
            edit.before_forward(running.kwargs["past_key_values"], len(written), 1)
        if len(left) <= _CROWDED * len(places) and not any(edit.pending for edit in edits):
            running.keep(left)
            state.keep(left)
            places, ended = places[left], ended[left]
        logits = running.step(state)


def _steers_prompt(setting: Setting) -> bool:
    return setting.steer_first_token and setting.alpha_max > 0


def _scores(prompt: Prompt, rows: Tensor, tokens: Tensor, lengths: Tensor) -> list[float]:
    """Negative log-likelihood of each answer under the unsteered model, in pieces that fit into memory.

    Answers to the same image that are the same are scored once: neighbouring settings often agree.
    """
    told_apart = torch.cat([rows[:, None], lengths[:, None], tokens], dim=1)
    answers, place = torch.unique(told_apart, dim=0, return_inverse=True)
    size = max(1, _SCORE_ENTRIES // (tokens.shape[1] * prompt.logits.shape[1]))
    scores: list[float] = []
    for part in answers.split(size):
        images, ends, written = part[:, 0], part[:, 1], part[:, 2:]
        read = prompt.rows(images).read_on(written[:, :-1])
        logits = torch.cat([prompt.logits[images].unsqueeze(1), read], dim=1)
        # One row at a time: the float32 copy of all logits would be another large table.
        for row, answer, end in zip(logits, written, ends.tolist(), strict=True):
            likelihood = row[:end].float().log_softmax(-1).gather(-1, answer[:end, None])
            scores.append(-float(likelihood.double().sum()))
    return [scores[index] for index in place.tolist()]


class SettingsState:
    """What the target layer's hook asks, forward by forward: each row of a batch is steered by a setting of its own.

    It takes the place of `GenerationState`. While the prompt is read it pools once for each way of pooling that any
    setting asks for; then there is one row for each image and setting.

    Args:
        layer: Index of the target layer, from 0 on; the hook reads it.
        multiplier: Factor that the layer applies to its attention output.
        settings: The settings whose pools and spans are needed.
        image_tokens: Ids of image placeholders, for spans.
    """

    def __init__(
        self, layer: int, multiplier: float, settings: Sequence[Setting], image_tokens: Sequence[int]
    ) -> None:
        self.layer = layer
        self.multiplier = multiplier
        self.image_tokens = list(image_tokens)
        self.pooled: dict[tuple[str, str], Tensor] = {setting.reading: torch.empty(0) for setting in settings}
        self.fired = False
        self._weights: dict[str, Tensor | None] = {}
        self._positions = 0
        self._constants: StepConstants | None = None

    def read(self, input_ids: Tensor, attention_mask: Tensor | None, positions: int) -> None:
        """Plan a forward over whole prompts: pool its updates and steer nothing."""
        self._constants, self._positions = None, positions
        for _, span in self.pooled:
            weights = attention_mask
            if span != "prompt":
                if input_ids.shape[1] != positions or not self.image_tokens:
                    raise ValueError(
                        f"span={span!r} needs a model whose prompt marks image positions by a token that its config "
                        "names. Use span='prompt'."
                    )
                is_image = torch.isin(input_ids, torch.tensor(self.image_tokens, device=input_ids.device))
                counts = is_image if span == "image" else ~is_image
                weights = counts if weights is None else (weights > 0) & counts
            self._weights[span] = weights

    def spread(self, settings: Sequence[Setting], first_token: bool = False) -> None:
        """Plan steered forwards: each image has one row for each setting, images outermost.

        Args:
            settings: The rows' settings.
            first_token: Whether the last prompt position is forwarded, which only some settings steer.
        """
        self._weights = {}
        rows = []
        for setting in settings:
            steered = setting.steer_first_token or not first_token
            # Mode "add" is the gate that is always open, so that both modes can be rows of one batch.
            gate = (1.0, 1.0) if setting.mode == "add" else (setting.g_min, setting.g_max)
            cap = torch.inf if setting.norm_cap is None else setting.norm_cap
            rows.append((setting.alpha_max if steered else 0.0, setting.k, setting.c, *gate, cap))
        cards = torch.stack([unit(self.pooled[setting.reading]) for setting in settings], dim=1)
        columns = torch.tensor(rows, dtype=torch.float32, device=cards.device).repeat(cards.shape[0], 1).T
        constants = step_constants(cards.flatten(0, 1), *columns.contiguous())
        self._constants = constants._replace(push=constants.push / self.multiplier)

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the rows only."""
        if self._constants is not None:
            self._constants = StepConstants(*(value[rows.to(value.device)] for value in self._constants))

    def steer(self, h: Tensor, update: Tensor) -> Tensor:
        """Read the prompt's updates, or steer those of every row."""
        self.fired = True
        if h.device != update.device:
            h = h.to(update.device)
        with torch.autocast(update.device.type, enabled=False):
            if self._constants is not None:
                return steer_step(h, update, self._constants)
            if update.shape[1] != self._positions:
                raise ValueError(
                    f"the prompt has {self._positions} positions but the target layer sees {update.shape[1]}: this "
                    "model changes the length of the prompt inside its forward and cannot be calibrated"
                )
            for pool, span in self.pooled:
                self.pooled[pool, span] = pool_updates(update, self._weights[span], pool)
            return update
