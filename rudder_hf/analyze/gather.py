"""One pass over the images: both answers with their traces, CARD, and CARD of the prompt without its image."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..calibrate.layers import LayerStatistics
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle, attach
from ..core.steering import beta_gate
from ..evaluate.tasks.base import Sample
from ..methods.controls import TextOnlyCard, text_only_cards
from ..metrics.statistics import Floats
from ..runtime.answers import end_ids, without_prompt
from ..runtime.progress import Progress, no_progress
from ..runtime.store import Store
from .study import Study
from .tokens import SIDES, GrowingText, TracedAnswer


class _StoredAnswer(TypedDict):
    text: str
    spans: list[list[int]]
    trace: dict[str, list[float]]


class _StoredTraces(TypedDict):
    sample: str
    vanilla: _StoredAnswer
    steered: _StoredAnswer
    card: str
    text_card: str | None


class StoredBatch(TypedDict, total=False):
    """A batch of an analysis: statistics of the layers, or traces of some images."""

    layers: list[LayerStatistics]
    answers: list[_StoredTraces]


@dataclass(frozen=True)
class ImageTraces:
    """What was gathered about one image.

    Attributes:
        sample: Its sample's id.
        vanilla: The unsteered answer.
        steered: The steered answer.
        card: Image-conditioned CARD, (hidden size,).
        text_card: CARD of the prompt without its image, (hidden size,); None if the model has none.
    """

    sample: str
    vanilla: TracedAnswer
    steered: TracedAnswer
    card: Floats
    text_card: Floats | None

    def record(self) -> dict[str, Any]:
        """As JSON values; vectors in float32."""
        return asdict(self) | {"card": _packed(self.card), "text_card": _packed(self.text_card)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ImageTraces:
        """Read what `record` wrote."""
        vanilla, steered = (TracedAnswer(**record[side]) for side in SIDES)
        return cls(record["sample"], vanilla, steered, _unpacked(record["card"]), _unpacked(record["text_card"]))


def _packed(vector: Floats | None) -> str | None:
    return None if vector is None else base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _unpacked(text: str | None) -> Any:
    return None if text is None else np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)


class Probabilities(LogitsProcessor):
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
    """Asks a model about images, unsteered and steered.

    Args:
        study: The model, the images and RUDDER's settings.
        max_new_tokens: Longest answer.
    """

    def __init__(self, study: Study, max_new_tokens: int) -> None:
        self.study, self.max_new_tokens = study, max_new_tokens
        self.no_text_card = ""  # why there is no text-only CARD

    def gather(self, store: Store, batch_size: int, progress: Progress = no_progress) -> list[ImageTraces]:
        """Ask about every image, but for those that an interrupted run has asked about.

        Args:
            store: The results folder, opened.
            batch_size: Images per batch.
            progress: Reports progress.
        """
        total = len(self.study.task.samples)
        rows = {row["sample"]: row for batch in store.batches(StoredBatch) for row in batch.get("answers", ())}
        for samples in self.study.batches(batch_size):
            progress("answers", len(rows), total)
            if any(sample.id not in rows for sample in samples):
                answers = [traces.record() for traces in self.read(samples)]
                store.append({"answers": answers})
                rows |= {row["sample"]: row for row in answers}
        progress("answers", len(rows), total)
        return [ImageTraces.from_record(rows[sample.id]) for sample in self.study.task.samples]

    @torch.no_grad()
    def read(self, samples: Sequence[Sample]) -> list[ImageTraces]:
        """Ask about a batch of images."""
        inputs = self.study.inputs(samples)
        with attach(self.study.loaded.model, self.study.config) as handle:
            vanilla, _ = self._answer(inputs, steered=False)
            steered, cards = self._answer(inputs, steered=True)
            text = self._text_cards(handle, inputs)
        return [
            ImageTraces(sample.id, vanilla[row], steered[row], cards[row], None if text is None else text[row])
            for row, sample in enumerate(samples)
        ]

    def _answer(self, inputs: dict[str, Any], steered: bool) -> tuple[list[TracedAnswer], Floats]:
        """Answers of one batch, and CARD of each."""
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
        tables = {
            "similarity": similarity,
            "gate": trace.gate.float().cpu() if steered else open_gate(similarity, self.study.config),
            "push": trace.push.float().cpu(),
            "probability": torch.stack(probabilities.steps, dim=1),
        }
        columns = {name: table.double().tolist() for name, table in tables.items()}
        tokenizer = getattr(self.study.loaded.processor, "tokenizer", self.study.loaded.processor)
        ends = end_ids(model)
        found = []
        for row, ids in enumerate(new.tolist()):
            # The end of sequence is no word of the answer.
            length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
            text = GrowingText(tokenizer)
            for token in ids[:length]:
                text.add(token)
            rounded = {name: [round(value, 6) for value in rows[row][:length]] for name, rows in columns.items()}
            found.append(TracedAnswer(text.text, text.spans, rounded))
        return found, _numpy(trace.card)

    def _text_cards(self, handle: SteeringHandle, inputs: dict[str, Any]) -> Floats | None:
        """CARD of the prompts without their images; None, with the reason kept, where a model has no such prompt."""
        if self.no_text_card:
            return None
        try:
            TextOnlyCard(
                config=self.study.config, mode=self.study.config.mode
            )  # raises ValueError for a span without text
            return _numpy(text_only_cards(handle, Call(handle.backbone.model, (), inputs)))
        except ValueError as error:
            self.no_text_card = str(error)
            return None


def _numpy(tensor: Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().double().numpy()
    return np.atleast_2d(found)
