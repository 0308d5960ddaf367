"""How often `rudder calibrate` calls settings calibrated that do nothing, and how often settings that do something.

No model is needed: what captions mention is simulated, and choice and verdict are those of the calibration. 24
settings, as many as the default grid has, are chosen from on 100 images and the choice is checked on 100 others, many
times. Vanilla and every setting take each mention from a caption that all of them share, or draw it anew in the same
way, so that without an effect they cannot be told apart, and their captions of an image resemble each other: on 500
images the interval of a change of CHAIR_I is then as wide as was measured (+-0.9 points), and so are the others.

Two worlds: `scenes` is like the embedded LLaVA's captions of the embedded scenes (five mentions, five to nine
objects), `photographs` like published results of LLaVA-1.5 on COCO (longer captions of fewer annotated objects).
Effects:

- none: settings do nothing. At most 10 % may be called calibrated.
- quarter: every setting removes a quarter of its hallucinated mentions.
- quarter_in_third: every third setting does, the others do nothing.
- cut: every setting leaves out the last mention of half of its captions, true or not. Again at most 10 % may.

    python benchmarks/null_calibration.py --out benchmarks/null-calibration.json
    python benchmarks/null_calibration.py --repetitions 40 --bootstrap 200          # a first look
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rudder_hf.calibrate import Rule
from rudder_hf.calibrate.choice import choose, differences, refusal
from rudder_hf.evaluate.result import Scored
from rudder_hf.metrics.chair import CHAIR_METRICS, COLUMNS, CaptionDetail, Mention
from rudder_hf.metrics.statistics import Counts, scores
from rudder_hf.runtime.environment import code_digest, hardware, versions
from rudder_hf.runtime.report import Table, with_interval
from rudder_hf.runtime.store import must_write_new, to_json

SETTINGS, IMAGES = 24, 100
MOST_FALSE = 0.1
_ABSENT = 10  # categories from here on are not in the image; -1 is no mention

Mentions = NDArray[np.int64]
"""Categories that captions mention: (settings, images, places in the caption)."""


@dataclass(frozen=True)
class World:
    """How captions come about.

    Attributes:
        objects: Chances of one, two, three ... objects in an image.
        said: For each place of a caption the chance that there is a mention.
        false: And the chance that it is hallucinated.
        spread: Shape of the gamma distribution, of mean 1, by which images are harder or easier.
        other: Chance that a true mention is of any object, not of the next one in the image's order.
        absent: How many different objects an image makes the model hallucinate.
        kept: Chance that a mention is that of the shared caption.
    """

    objects: tuple[float, ...]
    said: tuple[float, ...]
    false: tuple[float, ...]
    spread: float
    other: float
    absent: int
    kept: float

    def draw(self, random: np.random.Generator, captions: int, images: int) -> tuple[Mentions, NDArray[np.int64]]:
        """Captions of some images by as many settings, and the number of objects in each image."""
        objects = random.choice(len(self.objects), p=self.objects, size=images) + 1
        hardness = random.gamma(self.spread, 1 / self.spread, images)
        first = random.integers(0, objects)  # the object that is named first, and so the order
        shared = self._mentions(random, objects, hardness, first, 1)
        own = self._mentions(random, objects, hardness, first, captions)
        return np.where(random.random(own.shape) < self.kept, shared, own), objects

    def _mentions(
        self, random: np.random.Generator, objects: Mentions, hardness: NDArray[Any], first: Mentions, captions: int
    ) -> Mentions:
        shape, places = (captions, len(objects), len(self.said)), np.arange(len(self.said))
        in_turn = (first[:, None] + places) % objects[:, None]
        any_of_them = random.integers(0, objects[:, None], size=shape)
        true = np.where(random.random(shape) < self.other, any_of_them, in_turn)
        wrong = random.random(shape) < np.minimum(0.9, np.asarray(self.false) * hardness[:, None])
        mention = np.where(wrong, _ABSENT + random.integers(0, self.absent, size=shape), true)
        return np.where(random.random(shape) < np.asarray(self.said), mention, -1)


SCENES = World(
    objects=(0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2), said=(1.0,) * 5, false=(0.03, 0.08, 0.14, 0.2, 0.26),
    spread=6.0, other=0.02, absent=4, kept=0.85,
)  # fmt: skip
PHOTOGRAPHS = World(
    objects=(0.2, 0.22, 0.2, 0.16, 0.12, 0.1), said=(1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),
    false=(0.02, 0.04, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28, 0.32, 0.36), spread=1.0, other=0.9, absent=3, kept=0.8,
)  # fmt: skip
WORLDS = {"scenes": SCENES, "photographs": PHOTOGRAPHS}


# Effects


def no_effect(random: np.random.Generator, steered: Mentions) -> Mentions:
    """The same captions."""
    return steered


def quarter_removed(random: np.random.Generator, steered: Mentions) -> Mentions:
    """A quarter of the hallucinated mentions is not made."""
    return np.where((steered >= _ABSENT) & (random.random(steered.shape) < 0.25), -1, steered)


def quarter_removed_in_third(random: np.random.Generator, steered: Mentions) -> Mentions:
    """The same, by every third setting only."""
    third = (np.arange(len(steered)) % 3 == 0)[:, None, None]
    return np.where(third, quarter_removed(random, steered), steered)


def half_cut(random: np.random.Generator, steered: Mentions) -> Mentions:
    """The last mention of half of the captions is left out."""
    there = steered >= 0
    last = there & (there[..., ::-1].cumsum(-1)[..., ::-1] == 1)
    return np.where(last & (random.random(steered.shape[:2]) < 0.5)[..., None], -1, steered)


Effect = Callable[[np.random.Generator, Mentions], Mentions]
EFFECTS: dict[str, Effect] = {
    "none": no_effect,
    "quarter": quarter_removed,
    "quarter_in_third": quarter_removed_in_third,
    "cut": half_cut,
}


# Choice and verdict


def scored(mentions: Mentions, objects: NDArray[np.int64]) -> Scored:
    """Counts of one setting's captions; what is not about objects is the same for all settings."""
    images = len(objects)
    named = np.zeros((images, _ABSENT + mentions.max(initial=_ABSENT) + 1), dtype=bool)
    rows, places = np.nonzero(mentions >= 0)
    named[rows, mentions[rows, places]] = True
    wrong = mentions >= _ABSENT
    columns = {
        "captions": np.ones(images), "hallucinated_captions": wrong.any(1), "mentions": (mentions >= 0).sum(1),
        "hallucinated_mentions": wrong.sum(1), "objects": named.sum(1),
        "hallucinated_objects": named[:, _ABSENT:].sum(1), "truth": objects,
        "found": named[:, :_ABSENT].sum(1), "words": 7 * (mentions >= 0).sum(1),
    }  # fmt: skip
    same = {"answers": 1, "sequences_2": 31, "distinct_2": 28}
    values = [*(columns[name] for name in COLUMNS), *(np.full(images, value) for value in same.values())]
    counts = Counts(
        tuple(map(str, range(images))), (*COLUMNS, *same), np.stack([v.astype(np.float64) for v in values], axis=1)
    )
    return Scored(counts, CHAIR_METRICS)


def details(mentions: Mentions, objects: NDArray[np.int64]) -> tuple[CaptionDetail, ...]:
    """The same captions mention by mention, as the truncated control cuts them."""
    found = []
    for image, (row, count) in enumerate(zip(mentions.tolist(), objects.tolist(), strict=True)):
        said = tuple(Mention(str(name), str(name), place, place + 1) for place, name in enumerate(row) if name >= 0)
        wrong = tuple(mention for mention in said if int(mention.category) >= _ABSENT)
        found.append(CaptionDetail(image, "", said, wrong, frozenset(map(str, range(count))), 7 * len(said)))
    return tuple(found)


def calibrated_once(world: World, effect: Effect, rule: Rule, seed: int) -> str:
    """One calibration: why its choice is not called calibrated, empty if it is."""
    random = np.random.default_rng(seed)
    (tried, objects), (checked, other_objects) = (world.draw(random, SETTINGS + 1, IMAGES) for _ in range(2))
    vanilla, *candidates = (scored(own, objects).counts for own in (tried[0], *effect(random, tried[1:])))
    steered = effect(random, checked[1:])
    best = choose(dict(enumerate(candidates)), vanilla, rule).best
    record: dict[str, Any] = {
        "settings": best, "metric": rule.objective, "limits": rule.record(), "held_out_images": list(range(IMAGES)),
    }  # fmt: skip
    if best is not None:
        whole = replace(scored(checked[0], other_objects), details=details(checked[0], other_objects))
        record |= differences([whole, scored(steered[best], other_objects)], rule.bootstrap, rule.seed)
    return refusal(record)


def simulate(world: World, effect: Effect, rule: Rule, repetitions: int, seed: int = 0) -> dict[str, Any]:
    """Many calibrations: how many were called calibrated, with Wilson's 95 % interval, and what the others lacked."""
    refusals = [calibrated_once(world, effect, rule, seed + number) for number in range(repetitions)]
    calibrated = refusals.count("")
    low, high = wilson_interval(calibrated, repetitions)
    lacked = {
        "choice": "no setting within", "chair": "does not fall significantly (", "less": "by saying less",
        "f1": "F1 falls", "recall": "the floor",
    }  # fmt: skip
    return {
        "repetitions": repetitions, "seeds": [seed, seed + repetitions - 1], "calibrated": calibrated,
        "share": round(calibrated / repetitions, 4), "low": round(low, 4), "high": round(high, 4),
        "lacked": {name: sum(words in refused for refused in refusals) for name, words in lacked.items()},
    }  # fmt: skip


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = NormalDist().inv_cdf(0.975)
    share, weight = hits / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return middle - half, middle + half


def vanilla_scores(world: World, images: int = 20_000) -> dict[str, float]:
    """What vanilla's captions of a world are like."""
    captions, objects = world.draw(np.random.default_rng(0), 1, images)
    found = scored(captions[0], objects)
    return {name: round(value, 4) for name, value in scores(found.counts, found.metrics).items()}


def table(result: dict[str, Any]) -> str:
    """Markdown of a result: what was called calibrated, in percent."""
    cells: dict[str, dict[str, str]] = {}
    for row in result["results"]:
        share = with_interval(*(100 * row[name] for name in ("share", "low", "high")), "percent")
        cells.setdefault(row["effect"], {})[f"{row['world']}, {row['objective']}"] = share
    heads = list(next(iter(cells.values())))
    return Table(
        ["effect", *heads], [[name, *(own[head] for head in heads)] for name, own in cells.items()]
    ).markdown()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400, help="calibrations of each kind")
    parser.add_argument("--bootstrap", type=int, default=Rule().bootstrap, help="draws")
    parser.add_argument("--objectives", default="paper,f1")
    parser.add_argument("--seed", type=int, default=0, help="of the first repetition")
    parser.add_argument("--out", type=Path, default=None, help="a new JSON file")
    given = parser.parse_args()
    started, found = time.process_time(), []
    for name, world in WORLDS.items():
        for effect, change in EFFECTS.items():
            for objective in given.objectives.split(","):
                rule = Rule(objective, bootstrap=given.bootstrap)
                own = simulate(world, change, rule, given.repetitions, given.seed)
                found.append({"world": name, "effect": effect, "objective": objective} | own)
                print(f"{name}, {effect}, {objective}: {own}", flush=True)
    kept = all(row["share"] <= MOST_FALSE for row in found if row["effect"] in ("none", "cut"))
    result = {
        "settings": SETTINGS, "images": [IMAGES, IMAGES], "bootstrap": given.bootstrap, "most_false": MOST_FALSE,
        "kept": kept, "results": found,
        "worlds": {name: asdict(world) | {"vanilla": vanilla_scores(world)} for name, world in WORLDS.items()},
        "cpu_seconds": round(time.process_time() - started, 1), "code": code_digest("calibrate", "metrics"),
        "versions": versions(), "hardware": hardware(),
    }  # fmt: skip
    print(table(result))
    if given.out is not None:
        must_write_new(given.out, to_json(result))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
