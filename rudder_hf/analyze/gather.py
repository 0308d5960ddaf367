"""One pass over the images: both answers with their traces, CARD, and CARD of the prompt without its image."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..core.attach import attach
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle
from ..core.steering import beta_gate
from ..evaluate.run import batches, encode_samples
from ..evaluate.tasks.base import Sample
from ..methods.controls import TextOnlyCard, text_only_cards
from ..metrics.statistics import Floats
from ..runtime.answers import end_ids, without_prompt
from ..runtime.progress import Progress, no_progress
from ..runtime.store import Store
from .study import Study
from .tokens import GrowingAnswer, TracedAnswer


@dataclass(frozen=True)
class ImageTraces:
    """The traces of one image, as they are stored."""

    sample: str  # its sample's id
    vanilla: TracedAnswer
    steered: TracedAnswer
    card: str  # image-conditioned CARD, for `unpacked`
    text_card: str | None  # CARD of the prompt without its image, for `unpacked`; None if the model has none


def _packed(vectors: Tensor) -> list[str]:
    """Return each row as text: base64 of its float32 values."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors.detach().cpu().float().numpy()]


def unpacked(texts: Iterable[str]) -> Floats:
    """Return the vectors that were stored as texts, (texts, hidden size)."""
    return np.stack([np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64) for text in texts])


class Probabilities(LogitsProcessor):
    """Keeps the probability of the likeliest token, which is the one that greedy decoding writes."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record and pass on."""
        wide = scores.float()
        self.steps.append((wide.amax(-1) - torch.logsumexp(wide, -1)).exp().cpu())
        return scores


def open_gate(similarity: Tensor, config: RudderConfig) -> Tensor:
    """Return the share of alpha_max that a state of this similarity is given, whether it was steered or not."""
    if config.mode == "add":
        gate = torch.ones_like(similarity)
    else:
        settings = (config.k, config.c, config.g_min, config.g_max)
        gate = beta_gate(similarity, *(similarity.new_tensor(setting) for setting in settings))
    if config.norm_cap is not None and config.alpha_max > 0:
        gate = gate.clamp_max(config.norm_cap / config.alpha_max)
    return gate


class Gatherer:
    """Asks a model about images, unsteered and steered.

    Args:
        study: The model, the images and RUDDER's settings.
        max_new_tokens: Longest answer.
    """

    def __init__(self, study: Study, max_new_tokens: int) -> None:
        self.study, self.max_new_tokens = study, max_new_tokens
        self.no_text_card = ""  # why there is no text-only CARD

    def gather(self, store: Store, batch_size: int, progress: Progress = no_progress) -> list[ImageTraces]:
        """Ask about every image that an interrupted run has not asked about.

        Args:
            store: The results folder, opened.
            batch_size: Images per batch.
            progress: Reports progress.
        """
        everything = self.study.task.samples
        stored = store.batches(dict[str, list[ImageTraces]])
        done = {traces.sample: traces for batch in stored for traces in batch["answers"]}
        for samples in batches(everything, batch_size):
            progress("answers", len(done), len(everything))
            if any(sample.id not in done for sample in samples):
                found = self.read(samples)
                store.append({"answers": [asdict(traces) for traces in found]})
                done |= {traces.sample: traces for traces in found}
        progress("answers", len(done), len(everything))
        return [done[sample.id] for sample in everything]

    @torch.no_grad()
    def read(self, samples: Sequence[Sample]) -> list[ImageTraces]:
        """Ask about a batch of images."""
        inputs = encode_samples(self.study.loaded, self.study.task, samples)
        with attach(self.study.loaded.model, self.study.config) as handle:
            vanilla, _ = self._answer(inputs, steered=False)
            steered, cards = self._answer(inputs, steered=True)
            text = self._text_cards(handle, inputs)
        ids = [sample.id for sample in samples]
        return [ImageTraces(*row) for row in zip(ids, vanilla, steered, cards, text, strict=True)]

    def _answer(self, inputs: dict[str, Any], steered: bool) -> tuple[list[TracedAnswer], list[str]]:
        """Return the answers of one batch, and CARD of each."""
        model: Any = self.study.loaded.model
        probabilities = Probabilities()
        output = model.generate(
            **inputs,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_rudder=True,
            rudder=None if steered else False,
            logits_processor=LogitsProcessorList([probabilities]),
        )
        trace, new = output.rudder, without_prompt(output.sequences, inputs["input_ids"])
        similarity = trace.similarity.float().cpu()
        measured = {
            "similarity": similarity,
            "gate": trace.gate.float().cpu() if steered else open_gate(similarity, self.study.config),
            "push": trace.push.float().cpu(),
            "probability": torch.stack(probabilities.steps, dim=1),
        }
        values = torch.stack([table.double() for table in measured.values()], dim=-1).tolist()
        tokenizer = getattr(self.study.loaded.processor, "tokenizer", self.study.loaded.processor)
        answers = []
        for ids, row in zip(new.tolist(), values, strict=True):
            answer = GrowingAnswer(tokenizer, end_ids(model), tuple(measured))
            for token, at_token in zip(ids, row, strict=True):
                answer.add(token, *(round(value, 6) for value in at_token))
            answers.append(answer.traced())
        return answers, _packed(trace.card)

    def _text_cards(self, handle: SteeringHandle, inputs: dict[str, Any]) -> Sequence[str | None]:
        """Return CARD of the prompts without their images, or Nones where a model reads no such prompt."""
        config = self.study.config
        if not self.no_text_card:
            try:
                TextOnlyCard(config=config, mode=config.mode)  # raises ValueError for a span without text
                return _packed(text_only_cards(handle, Call(handle.backbone.model, (), inputs)))
            except ValueError as error:
                self.no_text_card = str(error)
        return [None] * len(inputs["input_ids"])
