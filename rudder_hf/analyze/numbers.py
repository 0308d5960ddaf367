"""From what was gathered to all numbers of the report; figures are drawn from these numbers and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..evaluate.scoring import chair_truth
from ..metrics.statistics import Floats
from .detector import detector_numbers
from .evidence import category_evidence, neighbour_evidence, probe_evidence
from .gather import ImageTraces, unpacked
from .geometry import cluster_numbers, distinct, rotation_numbers, tsne, units
from .study import AnalysisOptions, Study
from .tokens import MEASURES, SIDES, answer_mentions, token_view

NO_ANNOTATIONS = "it is not known what is in the images (give COCO annotations as --data)"
T = TypeVar("T")


class Notes(list[str]):
    """What the report has to do without, each with its reason."""

    def left_out(self, what: str, why: object) -> None:
        """Note that something is left out."""
        self.append(f"{what} left out: {str(why).rstrip('.')}.")

    def attempt(self, what: str, make: Callable[..., T], *arguments: Any) -> T | None:
        """The numbers, or None and a note that says why there are none."""
        try:
            return make(*arguments)
        except ValueError as error:
            self.left_out(what, error)
            return None


@dataclass(frozen=True)
class Material:
    """What the numbers are made from.

    Attributes:
        study: Images and settings.
        options: How to analyze.
        traces: What was gathered about each image.
        present: Objects in each image, as CHAIR's ground truth has them; None if they are not known.
        notes: Where to say what is left out.
    """

    study: Study
    options: AnalysisOptions
    traces: Sequence[ImageTraces]
    present: list[frozenset[str]] | None
    notes: Notes


def present_objects(study: Study, options: AnalysisOptions) -> list[frozenset[str]] | None:
    """Objects in each image, as CHAIR's ground truth has them; None without annotations."""
    samples = study.task.samples
    if study.task.kind != "chair":
        return None
    truth = chair_truth(samples, options.lineage)
    return [truth[int(sample.image_id)] for sample in samples]


def geometry_numbers(material: Material) -> dict[str, Any]:
    """Rotation, clusters, what CARD knows of the image, and coordinates for the figures."""
    attempt, seed, config = material.notes.attempt, material.options.seed, material.study.config
    cards = unpacked(traces.card for traces in material.traces)
    text_cards = [traces.text_card for traces in material.traces if traces.text_card is not None]
    text = unpacked(text_cards) if len(text_cards) == len(cards) else None
    # Of steered tokens; the least gate if none was steered.
    opened = [[gate for gate in traces.steered.trace["gate"] if gate > 0] for traces in material.traces]
    gates = np.asarray([np.mean(gates) if gates else config.g_min for gates in opened])
    strength = config.alpha_max * gates
    steering = strength[:, None] * cards
    rotation = None if text is None else rotation_numbers(text, cards, strength, seed)
    by_image = {"gate": gates}
    if rotation is not None:
        by_image |= {name: np.asarray(rotation[name]["values"]) for name in ("rotation_degrees", "alignment_gain")}
    names = None if material.present is None else [sorted(row) for row in material.present]
    found: dict[str, Any] = {
        "rotation": rotation,
        "clusters": attempt("Clusters of the steering vectors", cluster_numbers, steering, by_image, seed),
        "maps": attempt("The t-SNE maps", _maps, cards, text, steering, seed),
        **dict.fromkeys(("probe", "neighbours", "categories")),
    }
    if names is None:
        material.notes.left_out("Probe, neighbours and categories", NO_ANNOTATIONS)
        return found
    found["probe"] = attempt("The linear probe", probe_evidence, cards, text, names, seed)
    found["neighbours"] = attempt("Nearest neighbours", neighbour_evidence, cards, names, seed)
    found["categories"] = attempt("Clusters by category", _categories, cards, names, seed)
    return found


def _maps(cards: Floats, text: Floats | None, steering: Floats, seed: int) -> dict[str, Any]:
    """A t-SNE of image-conditioned and text-only CARDs, with which belong together, and one of steering vectors."""
    different, which = (cards[:0], np.zeros(0)) if text is None else distinct(units(text))
    points = tsne(np.concatenate([cards, different]), seed).tolist()
    image, text_only = points[: len(cards)], points[len(cards) :]
    return {"image": image, "text": text_only, "pairs": which.tolist(), "steering": tsne(steering, seed).tolist()}


def _categories(cards: Floats, names: list[list[str]], seed: int) -> dict[str, Any]:
    found = category_evidence(cards, names, seed)
    return found | {"map": tsne(cards[found["rows"]], seed).tolist()}


def token_numbers(material: Material) -> dict[str, Any]:
    """Answers of the first images, token by token, and the scale of the shades."""
    options = material.options
    if material.present is None:
        material.notes.left_out("Marks of hallucinated objects", NO_ANNOTATIONS)
    views: list[dict[str, Any]] = []
    for place, traces in enumerate(material.traces):
        present = None if material.present is None else material.present[place]
        answers = {side: token_view(getattr(traces, side), present, options.lineage) for side in SIDES}
        views.append({"id": traces.sample, "present": None if present is None else sorted(present), **answers})
    ids = [view["id"] for view in views]
    hallucinated = [place for place, view in enumerate(views) if view["vanilla"]["absent"]]
    if options.token_image is not None:
        drawn, chosen = ids.index(options.token_image), "asked for"
    elif hallucinated:
        drawn, chosen = hallucinated[0], "the first whose vanilla answer names an absent object"
    else:
        drawn, chosen = 0, "the first"
    return {
        "images": len(views),
        "scale": {measure: _scale(material.traces, measure) for measure in MEASURES},
        "shown": views[: options.shown],
        "figure": views[drawn],
        "figure_chosen": chosen,
    }


def _scale(traces: Sequence[ImageTraces], measure: str) -> list[float]:
    """Ends of the shades: nearly all values of all answers lie between them."""
    values = np.asarray([v for t in traces for side in SIDES for v in getattr(t, side).trace[measure]])
    values = values[np.isfinite(values)]
    if not len(values):
        return [0.0, 1.0]
    low, high = (float(end) for end in np.quantile(values, (0.02, 0.98)))
    return [low, high] if high - low > 1e-6 else [low - 0.5, high + 0.5]


def detectors(material: Material) -> dict[str, Any] | None:
    """The detectors on both answers; None without annotations."""
    if material.present is None:
        material.notes.left_out("The detector", NO_ANNOTATIONS)
        return None
    options = material.options
    found = {}
    for side, label in SIDES.items():
        answers = []
        for traces, present in zip(material.traces, material.present, strict=True):
            answer = getattr(traces, side)
            answers.append((traces.sample, answer, answer_mentions(answer, present, options.lineage)))
        what = f"The detector on the {label} answers"
        found[side] = material.notes.attempt(what, detector_numbers, answers, options.draws, options.seed)
    return found if any(found.values()) else None
