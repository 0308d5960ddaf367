"""`analyze`: one pass over the images, then all numbers; figures and the report are drawn from these alone."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..calibrate.search import layer_statistics
from ..core.attach import attach
from ..core.backbones import attention_update, find_backbone, resolve_layer
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle
from ..core.settings import CALL_SETTINGS
from ..core.steering import card
from ..evaluate.tasks import Sample, Task, batches, encode_samples, samples_hash
from ..evaluate.tasks.captions import chair_truth
from ..methods.branches import SINGLE, Branch, hidden_states_of, without_image
from ..metrics.statistics import Floats
from ..runtime.environment import versions
from ..runtime.errors import InputError
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, followed, no_progress
from ..runtime.store import Store, to_json, write_new
from .report import write_report
from .tokens import SIDES, TracedAnswer, answer_mentions, token_view, traced_answers

NUMBERS_FILE = "numbers.json"
_BINS = 20
SHOWN = 8  # images that the report shows token by token
Present = Sequence[frozenset[str]] | None
"""The objects in each image, as CHAIR's ground truth has them; None if they are not known."""


@dataclass(frozen=True)
class Study:
    """A model, the images that it is asked about, RUDDER's settings, and how to ask."""

    loaded: LoadedModel
    task: Task
    config: RudderConfig
    max_new_tokens: int | None = None  # longest answer; None is the task's own
    batch_size: int = 8
    command: str = ""  # for the record

    def __post_init__(self) -> None:
        if not self.config.alpha_max > 0:
            raise InputError(
                "alpha_max is 0, so that there is no push to analyze: give --set alpha_max=NUMBER above 0"
            )

    @property
    def longest(self) -> int:
        """The length of the longest answer, in tokens."""
        return self.max_new_tokens or self.task.max_new_tokens

    def present(self) -> Present:
        """Return the objects in each image, or None without annotations."""
        if self.task.kind != "chair":
            return None
        truth = chair_truth(self.task.samples, "pattern")
        return [truth[int(sample.image_id)] for sample in self.task.samples]

    def record(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, as JSON values."""
        samples = self.task.samples
        return {
            "version": __version__,
            "model": self.loaded.record(),
            "settings": {name: getattr(self.config, name) for name in ("layer", *CALL_SETTINGS)},
            "data": {"task": self.task.name, **self.task.data, "notes": self.task.notes},
            "images": len(samples),
            "samples": samples_hash(samples),
            "prompts": sorted({sample.prompt for sample in samples})[:5],
            "decoding": "greedy",
            "max_new_tokens": self.longest,
            "batch_size": self.batch_size,
        }


@dataclass(frozen=True)
class ImageTraces:
    """The traces of one image, as they are stored."""

    sample: str  # its sample's id
    vanilla: TracedAnswer
    steered: TracedAnswer
    card: str  # image-conditioned CARD, for `unpacked`
    text_card: str | None  # CARD of the prompt without its image, for `unpacked`; None if the model has none


def check_analysis_folder(out: Path) -> None:
    """Check that a folder is new or holds an unfinished analysis, before a model is loaded.

    Raises:
        InputError: It is something else.
    """
    Store(out, "analyze").check()
    if (out / NUMBERS_FILE).exists():
        raise InputError(f"{out} holds a finished analysis, which is never overwritten: choose a new folder.")


def analyze(out: Path, study: Study, progress: Progress = no_progress) -> dict[str, Any]:
    """Analyze a model on images, and write numbers, figures and the report into a folder.

    Args:
        out: A new folder, or that of the same analysis, which is continued.
        study: The model, the images and RUDDER's settings.
        progress: Reports progress.

    Returns:
        The numbers.

    Raises:
        InputError: The folder is not new.
    """
    plan, samples = study.record(), study.task.samples
    check_analysis_folder(out)
    store = Store(out, "analyze")
    store.start(plan)
    present = study.present()  # before hours are spent
    with store:
        traces = _gather(study, store, progress)
        parts = followed(batches(samples, study.batch_size), "layer statistics", progress)
        layers = layer_statistics(study.loaded.model, (encode_samples(study.loaded, study.task, p) for p in parts))
    steered_layer = resolve_layer(find_backbone(study.loaded.model), study.config.layer)
    text = [row.text_card for row in traces if row.text_card is not None]
    cards = unpacked(row.card for row in traces), unpacked(text) if len(text) == len(traces) else None
    notes = []
    if present is None:
        notes.append("which objects are in the images, because they have no annotations (give COCO's as `--data`).")
    if cards[1] is None:
        notes.append("how far the image turns CARD: this model or this `span` has no CARD without an image.")
    numbers: dict[str, Any] = {
        **{"command": study.command, "versions": versions(), **plan, "notes": notes},
        "layers": {"steered_layer": steered_layer, "layers": [asdict(entry) for entry in layers]},
        "answers": answer_numbers(traces, present),
        "tokens": token_numbers(traces, present),
        "gate": gate_numbers([row.steered.trace for row in traces]),
        "geometry": geometry_numbers(*cards),
    }
    if present is not None:
        numbers["present"] = {sample.id: sorted(row) for sample, row in zip(samples, present, strict=True)}
    shown = {entry["id"] for entry in numbers["tokens"]}
    images = {sample.id: study.task.image(sample) for sample in samples if sample.id in shown}
    numbers["summary"] = write_report(out, numbers, images)
    # Last: a folder with this file is complete.
    write_new(out / NUMBERS_FILE, to_json(numbers))
    return numbers


def _gather(study: Study, store: Store, progress: Progress) -> list[ImageTraces]:
    """Ask about every image that an interrupted run has not asked about."""
    stored = store.batches(dict[str, list[ImageTraces]])
    done = {traces.sample: traces for batch in stored for traces in batch["answers"]}
    parts = [part for part in batches(study.task.samples, study.batch_size) if any(s.id not in done for s in part)]
    for samples in followed(parts, "answers", progress):
        found = read_images(study, samples)
        store.append({"answers": [asdict(traces) for traces in found]})
        done |= {traces.sample: traces for traces in found}
    return [done[sample.id] for sample in study.task.samples]


@torch.no_grad()
def read_images(study: Study, samples: Sequence[Sample]) -> list[ImageTraces]:
    """Ask about a batch of images, unsteered and steered, and read CARD with and without the image."""
    model: Any = study.loaded.model
    inputs = encode_samples(study.loaded, study.task, samples)
    tokenizer = getattr(study.loaded.processor, "tokenizer", study.loaded.processor)
    answers, cards = [], []
    with attach(model, study.config) as handle:
        for switch in (False, None):
            output = model.generate(
                **inputs,
                max_new_tokens=study.longest,
                do_sample=False,
                num_beams=1,
                return_dict_in_generate=True,
                output_rudder=True,
                rudder=switch,
            )
            answers.append(traced_answers(output, inputs["input_ids"], tokenizer))
            cards = _packed(output.rudder.card)
        text = _text_cards(handle, study.config, inputs)
    ids = [sample.id for sample in samples]
    return [ImageTraces(*row) for row in zip(ids, *answers, cards, text, strict=True)]


def _text_cards(handle: SteeringHandle, config: RudderConfig, inputs: dict[str, Any]) -> Sequence[str | None]:
    """Return CARD of the prompts without their images, or Nones where a model reads no such prompt."""
    if config.span == "image":
        return [None] * len(inputs["input_ids"])
    try:
        text = without_image(handle.backbone.model, Call(handle.backbone.model, (), inputs))
        branch = Branch.prepare(handle.backbone.loop, {**text, **SINGLE})
    except ValueError:
        return [None] * len(inputs["input_ids"])
    attention = attention_update(handle.backbone.layers[handle.layer]).module
    (update,) = branch.read([attention], lambda args, kwargs, output: hidden_states_of(output))
    return _packed(card(update, text["attention_mask"], config.pool))


def _packed(vectors: Tensor) -> list[str]:
    """Return each row as text: base64 of its float32 values."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors.detach().cpu().float().numpy()]


def unpacked(texts: Iterable[str]) -> Floats:
    """Return the vectors that were stored as texts, (texts, hidden size)."""
    return np.stack([np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64) for text in texts])


# Numbers; figures are drawn from them and nothing else


def answer_numbers(traces: Sequence[ImageTraces], present: Present) -> dict[str, Any]:
    """Count the answers that differ, and the mentions of objects that are not in the image."""
    found: dict[str, Any] = {"differ": sum(entry.vanilla.text != entry.steered.text for entry in traces)}
    if present is not None:
        for side in SIDES:
            pairs = zip(traces, present, strict=True)
            named = [m for entry, inside in pairs for m in answer_mentions(getattr(entry, side), inside)]
            found[side] = {"mentions": len(named), "absent": sum(bool(mention.absent) for mention in named)}
    return found


def token_numbers(traces: Sequence[ImageTraces], present: Present) -> list[dict[str, Any]]:
    """Return the answers of the first images token by token."""
    views: list[dict[str, Any]] = []
    for place, entry in enumerate(traces[:SHOWN]):
        inside = None if present is None else present[place]
        answers = {side: token_view(getattr(entry, side), inside) for side in SIDES}
        views.append({"id": entry.sample, "present": None if inside is None else sorted(inside), **answers})
    return views


def gate_numbers(traces: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Return the similarities of the steered answers' tokens, and the mean gate over the similarity.

    Args:
        traces: The trace of each steered answer.
    """
    similarity, gate = (
        np.asarray([value for trace in traces for value in trace[name]]) for name in ("similarity", "gate")
    )
    bins = np.linspace(similarity.min(initial=0.0), similarity.max(initial=0.1), _BINS + 1)
    # The first token is not steered unless `steer_first_token` is on.
    similarity_steered, gate = similarity[gate > 0], gate[gate > 0]
    counts, sums = (np.histogram(similarity_steered, bins, weights=weights)[0] for weights in (None, gate))
    middles = (bins[:-1] + bins[1:]) / 2
    return {
        "bins": bins.tolist(),
        "tokens": {"n": len(similarity), "histogram": np.histogram(similarity, bins)[0].tolist()},
        "curve": [[float(at), float(total / n)] for at, n, total in zip(middles, counts, sums, strict=True) if n],
        "mean_gate": float(gate.mean()) if len(gate) else 0.0,
    }


def geometry_numbers(image: Floats, text: Floats | None) -> dict[str, Any]:
    """Compute the angles between CARDs, with histograms of them on common bins.

    Args:
        image: CARD of each prompt with its image, (images, hidden size).
        text: CARD of each prompt without its image, same shape; None if the model has none.
    """
    cosines = (units(image) @ units(image).T)[np.triu_indices(len(image), 1)]
    angles: dict[str, Floats] = {"between_images": np.degrees(np.arccos(np.clip(cosines, -1, 1)))}
    found: dict[str, Any] = {}
    if text is not None:
        angles["rotation"] = rotation(text, image)
    bins = np.linspace(0, max([1.0, *(values.max(initial=0.0) for values in angles.values())]), _BINS + 1)
    for name, values in angles.items():
        if len(values):
            low, high = np.quantile(values, (0.05, 0.95)).tolist()
            counts = np.histogram(values, bins)[0].tolist()
            found[name] = {"n": len(values), "mean": float(values.mean()), "spread": [low, high], "histogram": counts}
    return {"bins": bins.tolist(), **found}


def units(vectors: Floats) -> Floats:
    """Return the rows with length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return found


def rotation(one: Floats, other: Floats) -> Floats:
    """Return the angle between the directions of paired rows, in degrees (the paper's Delta theta).

    By the half-angle form: the arc cosine of a product close to 1 would lose half of its digits.
    """
    one, other = units(one), units(other)
    half = np.arctan2(np.linalg.norm(one - other, axis=-1), np.linalg.norm(one + other, axis=-1))
    angles: Floats = np.degrees(2 * half)
    return angles
