"""One pass over the pictures: both answers with their traces, CARD, and CARD of the prompt without its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle, attach
from ..core.steering import beta_gate
from ..evaluate.tasks.base import Sample, Task
from ..methods.controls import TextOnlyCard, text_only_cards
from ..runtime.inputs import encode, end_ids, without_prompt
from ..runtime.models import Subject
from .geometry import Floats
from .tokens import Written, token_spans

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Seen:
    """What was seen of one picture.

    Attributes:
        sample: Its sample's id.
        vanilla: The unsteered answer.
        steered: The steered answer.
        card: Image-conditioned CARD, (hidden size,).
        text_card: CARD of the prompt without its picture, (hidden size,); None if the model has none.
    """

    sample: str
    vanilla: Written
    steered: Written
    card: Floats
    text_card: Floats | None

    def answers(self) -> dict[str, Any]:
        """The answers as JSON values."""
        return {"sample": self.sample, "vanilla": asdict(self.vanilla), "steered": asdict(self.steered)}


class Chances(LogitsProcessor):
    """Keeps the probability of the likeliest token, which is the one that greedy decoding writes."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Look and pass on."""
        wide = scores.float()
        self.steps.append((wide.amax(-1) - torch.logsumexp(wide, -1)).exp().cpu())
        return scores


def open_gate(similarity: Tensor, config: RudderConfig) -> Tensor:
    """The share of alpha_max that a state of this similarity is given, whether it was steered or not."""
    if config.mode == "add":
        gate = torch.ones_like(similarity)
    else:
        settings = (config.k, config.c, config.g_min, config.g_max)
        gate = beta_gate(similarity, *(similarity.new_tensor(setting) for setting in settings))
    if config.norm_cap is not None and config.alpha_max > 0:
        gate = gate.clamp_max(config.norm_cap / config.alpha_max)
    return gate


class Gatherer:
    """Reads pictures with one model and one setting.

    Args:
        subject: The stock model and its processor.
        config: RUDDER's settings.
        max_new_tokens: Longest answer.
    """

    def __init__(self, subject: Subject, config: RudderConfig, max_new_tokens: int) -> None:
        self.subject, self.config, self.max_new_tokens = subject, config, max_new_tokens
        self.without_text_card = ""  # why there is no text-only CARD

    @torch.no_grad()
    def read(self, task: Task, samples: Sequence[Sample]) -> list[Seen]:
        """Read a batch of pictures."""
        model, processor = self.subject.model, self.subject.processor
        pictures = [task.image(sample) for sample in samples]
        inputs = encode(model, processor, pictures, [sample.prompt for sample in samples])
        with attach(model, self.config) as handle:
            vanilla, _ = self._write(inputs, steered=False)
            steered, cards = self._write(inputs, steered=True)
            text = self._text_cards(handle, inputs)
        return [
            Seen(sample.id, vanilla[row], steered[row], cards[row], None if text is None else text[row])
            for row, sample in enumerate(samples)
        ]

    def _write(self, inputs: dict[str, Any], steered: bool) -> tuple[list[Written], Floats]:
        """Answers of one batch, and CARD of each."""
        model: Any = self.subject.model
        chances = Chances()
        output = model.generate(
            **inputs,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_rudder=True,
            rudder=None if steered else False,
            logits_processor=LogitsProcessorList([chances]),
        )
        trace, new = output.rudder, without_prompt(output.sequences, inputs["input_ids"])
        similarity = trace.similarity.float().cpu()
        gate = trace.gate.float().cpu() if steered else open_gate(similarity, self.config)
        chance = torch.stack(chances.steps, dim=1)
        tables = [table.double().tolist() for table in (similarity, gate, trace.push.float().cpu(), chance)]
        tokenizer = getattr(self.subject.processor, "tokenizer", self.subject.processor)
        ends = end_ids(self.subject.model)
        found = []
        for row, ids in enumerate(new.tolist()):
            # The end of sequence is no word of the answer.
            length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
            text, spans = token_spans(tokenizer, ids[:length])
            columns = [[round(value, 6) for value in table[row][:length]] for table in tables]
            found.append(Written(text, spans, *columns))
        return found, _numpy(trace.card)

    def _text_cards(self, handle: SteeringHandle, inputs: dict[str, Any]) -> Floats | None:
        """CARD of the prompts without their pictures; None, with the reason kept, where a model has no such prompt."""
        if self.without_text_card:
            return None
        try:
            TextOnlyCard(config=self.config, mode=self.config.mode)  # raises ValueError for a span without text
            return _numpy(text_only_cards(handle, Call(handle.backbone.model, (), inputs)))
        except ValueError as error:
            self.without_text_card = str(error)
            return None


def _numpy(tensor: Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().double().numpy()
    return np.atleast_2d(found)
