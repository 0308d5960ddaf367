"""Checks of the choice: on held-out images, with another image's CARD, on POPE's yes/no questions, without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..evaluate.tasks import Task
from ..metrics.statistics import Counts, compare, ratio, scores, share
from ..runtime.report import with_interval
from .choice import Choice
from .data import CalibrationData
from .scoring import OBJECTIVES, Limits, nll, recall
from .search import SettingSearch
from .settings import VANILLA, Setting, neighbours

ENOUGH = 0.8
"""Share of the gain that the criterion without labels has to keep to be called good enough."""
_RISES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_broken = share("broken_sentences", "scene_sentences")


def finalists(choices: Sequence[Choice[Setting]], counts: Mapping[Setting, Counts], runners_up: int) -> list[Setting]:
    """Who is checked: the choice, those that come next, and the best by other rules (of each mode, without labels).

    Args:
        choices: The choice first.
        counts: Of all settings, on the images to choose with.
        runners_up: How many come next, if they are better than vanilla.
    """
    first = choices[0]
    if first.best is None:
        return []
    better = [c for c in first.feasible if OBJECTIVES[first.objective](counts[c].total()) < first.vanilla]
    following = [c for c in better if c != first.best][:runners_up]
    others = [choice.best for choice in choices if choice.best is not None]
    return list(dict.fromkeys([first.best, *following, *others]))


def check_held_out(
    search: SettingSearch, data: CalibrationData, chosen: Sequence[Setting]
) -> tuple[dict[Setting, Counts], dict[Setting, Counts]]:
    """Decode vanilla and the finalists on the held-out images, and the finalists with another image's CARD.

    Returns:
        Counts of vanilla and of the finalists; and of the finalists where each image is steered by the CARD of another
        one: what is left of the effect then is not about the image.
    """
    if not data.checking or not chosen:
        return {}, {}
    own = replace(search, task=data.check_task, samples=data.checking)
    own.decode([VANILLA, *chosen], data.checking)
    found = {setting: own.scored(setting).counts for setting in (VANILLA, *chosen)}
    if len(data.checking) < 2:
        return found, {}
    other = replace(own, other_card=True, answers={})
    other.refresh()
    other.decode(chosen, data.checking)
    return found, {setting: other.scored(setting).counts for setting in chosen}


def check_pope(search: SettingSearch, task: Task, best: Setting, tried: Sequence[Setting]) -> list[dict[str, Any]]:
    """Answer POPE's questions with the chosen setting and its neighbours, the first token unsteered and steered.

    Args:
        search: What decoded the images to choose with.
        task: POPE's questions, about images that were not used for choosing.
        best: The chosen setting.
        tried: The settings that were tried.

    Returns:
        For each setting, vanilla first, its description, scores, and the change of accuracy against vanilla.
    """
    options = replace(search.options, max_new_tokens=task.max_new_tokens, label_free=False, objective="mean")
    asked = replace(search, task=task, samples=task.samples, options=options)
    around = [best, *neighbours(best, tried)]
    varied = [replace(setting, steer_first_token=first) for first in (False, True) for setting in around]
    settings = list(dict.fromkeys([VANILLA, best, *varied]))
    asked.decode(settings, task.samples)
    scored = {setting: asked.scored(setting) for setting in settings}
    found = []
    for setting, answers in scored.items():
        counts, metrics = answers.counts, answers.metrics
        change = compare(scored[VANILLA].counts, counts, metrics, options.bootstrap, options.seed)["accuracy"]
        values = (100 * change.value, 100 * change.low, 100 * change.high)
        found.append(
            {
                "setting": ("chosen: " if setting == best else "") + setting.describe(),
                **setting.record(),
                "scores": {name: round(value, 6) for name, value in scores(counts, metrics).items()},
                "change": with_interval(*values, "percent", sign=True),
            }
        )
    return found


def broken_by_limit(counts: Mapping[Setting, Counts], limits: Limits) -> list[dict[str, Any]]:
    """How many broken sentences each limit of the likelihood lets through, where those can be counted.

    Args:
        counts: Of vanilla and of all settings, also of those dropped early, on the images that they got to.
        limits: The limits of the run.

    Returns:
        For several limits the number of settings within it and the recall floor, and the mean and largest share of
        broken sentences among them; nothing without a grammar.
    """
    vanilla = counts[VANILLA]
    if "broken_sentences" not in vanilla.columns:
        return []
    kept: list[tuple[float, float]] = []
    for setting, own in counts.items():
        sums, before = own.total(), vanilla.ordered(own.ids).total()
        if setting != VANILLA and recall(sums) >= limits.recall_floor * recall(before):
            kept.append((float(nll(sums) - nll(before)), float(_broken(sums))))
    found = []
    for limit in (*sorted({*_RISES, limits.nll_rise}), None):
        within = [broken for rise, broken in kept if limit is None or rise <= limit]
        if within:
            values = {"mean_broken": round(float(np.mean(within)), 6), "most_broken": round(max(within), 6)}
            found.append({"nll_rise": limit, "settings": len(within), **values})
    return found


def compare_label_free(
    counts: Mapping[Setting, Counts], labelled: Choice[Setting], free: Choice[Setting], limits: Limits
) -> dict[str, Any]:
    """How close the choice without labels comes to the one with labels, on the same images.

    Returns:
        The share of the labelled choice's gain that the other keeps; its recall relative to vanilla's; whether both
        chose the same; and whether that is good enough: 80 % of the gain, within the recall floor.
    """
    chosen, vanilla = counts[free.best or VANILLA].total(), counts[VANILLA].total()
    possible = labelled.vanilla - labelled.score
    reached = labelled.vanilla - float(OBJECTIVES[labelled.objective](chosen))
    kept = reached / possible if possible > 0 else 0.0
    found = float(ratio(recall(chosen), recall(vanilla)))
    return {
        "share_of_gain": round(kept, 4),
        "recall": round(found, 4),
        "same_choice": free.best == labelled.best,
        "good_enough": kept >= ENOUGH and found >= limits.recall_floor,
    }
