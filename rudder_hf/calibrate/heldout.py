"""The held-out check: the choice and its rivals on pictures that were not used for choosing, and with another CARD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..metrics.statistics import Counts
from .data import CalibrationData
from .scoring import OBJECTIVES, Scorer
from .search import Search
from .selection import Candidate, Choice
from .settings import VANILLA
from .store import UNSTEERED, Store

OTHER_CARD = "other-card"


@dataclass(frozen=True)
class HeldOut:
    """Counts on the held-out pictures.

    Attributes:
        own: Of vanilla and of the finalists.
        other: Of the finalists, each picture steered by the CARD of another one: what is left of the effect then is
            not about the picture.
    """

    own: dict[Candidate, Counts] = field(default_factory=dict)
    other: dict[Candidate, Counts] = field(default_factory=dict)


def finalists(choices: Sequence[Choice], counts: Mapping[Candidate, Counts], runners_up: int) -> list[Candidate]:
    """Who is checked: the choice, those that come next, and the best by other rules (of each mode, without labels).

    Args:
        choices: The choice first.
        counts: Of all candidates, on the pictures to choose with.
        runners_up: How many come next, if they are better than vanilla.
    """
    first = choices[0]
    better = [c for c in first.feasible if OBJECTIVES[first.objective](counts[c].total()) < first.vanilla]
    following = [c for c in better if c != first.best][:runners_up]
    best = [choice.best for choice in choices if choice.best is not None]
    return list(dict.fromkeys([*best[:1], *following, *best[1:]])) if first.best is not None else []


def check(
    search: Search, data: CalibrationData, chosen: Sequence[Candidate], folder: Path, plan: Mapping[str, Any]
) -> HeldOut:
    """Decode vanilla and the finalists on the held-out pictures, and the finalists with another picture's CARD.

    Args:
        search: What decoded the pictures to choose with.
        data: The pictures.
        chosen: The finalists.
        folder: Where the state is kept; the control has a folder of its own in it.
        plan: What all answers have in common.
    """
    if not data.checking or not chosen:
        return HeldOut()
    scorer = Scorer(data.checking, data.check_task.name, data.labelled, search.scorer.lineage)
    checker = replace(search, task=data.check_task, samples=data.checking, scorer=scorer)
    at_layer: dict[int, list[Candidate]] = {}
    for candidate in chosen:
        at_layer.setdefault(candidate[0], []).append(candidate)
    for layer, candidates in at_layer.items():
        checker.decode(layer, [VANILLA, *(setting for _, setting in candidates)], data.checking)
    own = {c: checker.counts(c, data.checking) for c in (UNSTEERED, *chosen)}
    if len(data.checking) < 2:
        return HeldOut(own)
    with Store(folder / OTHER_CARD, plan, search.store.process) as store:
        control = replace(checker, store=store, shuffled=True)
        for layer, candidates in at_layer.items():
            control.decode(layer, [setting for _, setting in candidates], data.checking)
        return HeldOut(own, {c: control.counts(c, data.checking) for c in chosen})
