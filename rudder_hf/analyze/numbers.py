"""From what was gathered to all numbers of the report; figures are drawn from these numbers and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ..core.configuration import RudderConfig
from ..evaluate.tasks.base import Sample, Task
from ..metrics.chair import CHAIR_METRICS, chair, ground_truth
from ..metrics.chair_parsers import Lineage
from ..metrics.coco import CocoData
from ..metrics.statistics import compare, interval
from .clusters import clusters
from .detector import detector
from .embedding import tsne
from .evidence import neighbour_evidence, probe_evidence, semantic_evidence
from .gathering import Seen
from .geometry import Floats, distinct, geometry, units
from .tokens import mentioned, view

NO_ANNOTATIONS = "it is not known what is in the pictures (give COCO annotations as --data)"
Note = Callable[[str, object], None]


@dataclass(frozen=True)
class Material:
    """What the numbers are made from.

    Attributes:
        samples: The pictures.
        seen: What was seen of each.
        present: Objects in each; None if that is not known.
        config: RUDDER's settings.
        lineage: How mentions are found.
        seed: Of everything random.
        draws: Of bootstraps.
    """

    samples: Sequence[Sample]
    seen: Sequence[Seen]
    present: list[frozenset[str]] | None
    config: RudderConfig
    lineage: Lineage = "pattern"
    seed: int = 0
    draws: int = 2000

    @property
    def cards(self) -> Floats:
        """CARD of each picture, (pictures, hidden size)."""
        return np.stack([seen.card for seen in self.seen])

    @property
    def text_cards(self) -> Floats | None:
        """Text-only CARD of each picture's prompt; None if there is none."""
        found = [seen.text_card for seen in self.seen if seen.text_card is not None]
        return np.stack(found) if len(found) == len(self.seen) else None

    @property
    def gates(self) -> Floats:
        """Mean gate of each picture's steered tokens; the least gate if none was steered."""
        opened = [[gate for gate in seen.steered.gate if gate > 0] for seen in self.seen]
        return np.asarray([np.mean(gates) if gates else self.config.g_min for gates in opened])


def present_objects(task: Task, lineage: Lineage) -> list[frozenset[str]] | None:
    """Objects in each picture of a task, as CHAIR's ground truth has them; None without annotations."""
    if task.kind != "chair":
        return None
    samples = task.samples
    data = CocoData(
        files={int(s.image_id): s.image for s in samples},
        objects={int(s.image_id): tuple(s.reference["objects"]) for s in samples},
        references={int(s.image_id): tuple(s.reference["captions"]) for s in samples},
        categories=tuple(dict.fromkeys(name for s in samples for name in s.reference["objects"])),
    )
    truth = ground_truth(data, lineage)
    return [truth[int(s.image_id)] for s in samples]


def attempt(note: Note, what: str, make: Callable[[], Any]) -> Any:
    """The numbers, or None and a line that says why there are none."""
    try:
        return make()
    except ValueError as error:
        note(what, error)
        return None


def caption_scores(material: Material) -> dict[str, Any]:
    """CHAIR of both answers on these pictures, with paired intervals."""
    assert material.present is not None
    ids = range(len(material.samples))
    truth = dict(zip(ids, material.present, strict=True))
    texts = {
        "vanilla": [seen.vanilla.text for seen in material.seen],
        "steered": [seen.steered.text for seen in material.seen],
    }
    counts = {
        name: chair(list(zip(ids, answers, strict=True)), truth, material.lineage).counts
        for name, answers in texts.items()
    }
    alone = {name: interval(count, CHAIR_METRICS, material.draws, material.seed) for name, count in counts.items()}
    paired = compare(counts["vanilla"], counts["steered"], CHAIR_METRICS, material.draws, material.seed)
    return {
        "pictures": len(material.samples),
        "lineage": material.lineage,
        "metrics": [
            {
                "name": metric.name,
                "label": metric.label,
                "percent": metric.unit == "percent",
                "vanilla": asdict(alone["vanilla"][metric.name]),
                "steered": asdict(alone["steered"][metric.name]),
                "difference": asdict(paired[metric.name]),
            }
            for metric in CHAIR_METRICS
            if metric.name in ("chair_s", "chair_i", "recall", "length")
        ],
    }


def geometry_numbers(material: Material, note: Note) -> dict[str, Any]:
    """Rotation, clusters, what CARD knows of the picture, and coordinates for the figures."""
    cards, text, present, seed = material.cards, material.text_cards, material.present, material.seed
    strength = material.config.alpha_max * material.gates
    steering = strength[:, None] * cards
    found: dict[str, Any] = {"rotation": None if text is None else geometry(text, cards, strength, seed)}
    by_picture = {"gate": material.gates}
    if found["rotation"] is not None:
        by_picture["rotation_degrees"] = np.asarray(found["rotation"]["rotation_degrees"]["values"])
        by_picture["alignment_gain"] = np.asarray(found["rotation"]["alignment_gain"]["values"])
    names = None if present is None else [sorted(row) for row in present]
    found["clusters"] = attempt(
        note, "Clusters of the steering vectors", lambda: clusters(steering, cards, by_picture, names, seed)
    )
    found["overlay"] = attempt(note, "The t-SNE overlay", lambda: overlay(cards, text, seed))
    found["steering_map"] = attempt(note, "The t-SNE of the steering vectors", lambda: _rounded(tsne(steering, seed)))
    if names is None:
        note("Probe, neighbours and categories", NO_ANNOTATIONS)
        return found | {"probe": None, "neighbours": None, "semantic": None}
    found["probe"] = attempt(note, "The linear probe", lambda: probe_evidence(cards, text, names, seed))
    found["neighbours"] = attempt(note, "Nearest neighbours", lambda: neighbour_evidence(cards, names, seed))
    found["semantic"] = attempt(note, "Clusters by category", lambda: _semantic(cards, names, seed))
    return found


def _semantic(cards: Floats, names: list[list[str]], seed: int) -> dict[str, Any]:
    found = semantic_evidence(cards, names, seed)
    return found | {"map": _rounded(tsne(cards[found["rows"]], seed))}


def overlay(cards: Floats, text: Floats | None, seed: int) -> dict[str, Any]:
    """One t-SNE of image-conditioned and text-only CARDs, and which belong together."""
    if text is None:
        return {"image": _rounded(tsne(cards, seed)), "text": [], "pairs": []}
    different, which = distinct(units(text))
    both = tsne(np.concatenate([cards, different]), seed)
    return {"image": _rounded(both[: len(cards)]), "text": _rounded(both[len(cards) :]), "pairs": which.tolist()}


def _rounded(points: Floats) -> list[list[float]]:
    return [[round(float(x), 3), round(float(y), 3)] for x, y in points]


def token_numbers(material: Material, shown: int, picture: str | None) -> dict[str, Any]:
    """Answers of the first pictures, token by token, and the scale of the colours.

    Args:
        material: What was gathered.
        shown: How many pictures.
        picture: Id of the one for the figure; else the first whose unsteered answer names an absent object.

    Raises:
        ValueError: There is no picture of that id.
    """
    views: list[dict[str, Any]] = []
    for place, seen in enumerate(material.seen):
        present = None if material.present is None else material.present[place]
        answers = {name: view(getattr(seen, name), present, material.lineage) for name in ("vanilla", "steered")}
        views.append({"id": seen.sample, "present": None if present is None else sorted(present), **answers})
    ids = [entry["id"] for entry in views]
    if picture is not None and picture not in ids:
        raise ValueError(f"--token-picture {picture} is not among the {len(ids)} pictures, such as {ids[0]}")
    wrong = [place for place, entry in enumerate(views) if entry["vanilla"]["absent"]]
    drawn = ids.index(picture) if picture is not None else wrong[0] if wrong else 0
    places = list(range(min(shown, len(views))))
    return {
        "pictures": len(views),
        "scale": {name: _scale(material.seen, name) for name in ("similarity", "gate")},
        "shown": [views[place] for place in places],
        "figure": views[drawn],
        "figure_chosen": "asked for"
        if picture is not None
        else "the first whose vanilla answer names an absent object"
        if wrong
        else "the first",
    }


def _scale(seen: Sequence[Seen], name: str) -> list[float]:
    """Ends of the colours: nearly all values of all answers lie between them."""
    values = [
        value for entry in seen for written in (entry.vanilla, entry.steered) for value in getattr(written, name)
    ]
    values = [value for value in values if np.isfinite(value)]
    if not values:
        return [0.0, 1.0]
    low, high = (float(end) for end in np.quantile(values, (0.02, 0.98)))
    return [low, high] if high - low > 1e-6 else [low - 0.5, high + 0.5]


def detector_numbers(material: Material, note: Note) -> dict[str, Any] | None:
    """The detectors on both answers; None without annotations."""
    if material.present is None:
        note("The detector", NO_ANNOTATIONS)
        return None
    found = {}
    for name, text in (("vanilla", "vanilla"), ("steered", "RUDDER")):
        answers = [
            (seen.sample, getattr(seen, name), mentioned(getattr(seen, name), present, material.lineage))
            for seen, present in zip(material.seen, material.present, strict=True)
        ]
        made = partial(detector, answers, material.draws, material.seed)
        found[name] = attempt(note, f"The detector on the {text} answers", made)
    return found if any(found.values()) else None
