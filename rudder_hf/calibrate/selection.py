"""The choice: the least hallucination within the limits, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..metrics.errors import InputError
from ..metrics.statistics import Counts, Floats
from .scoring import OBJECTIVES, Limits
from .settings import Setting

Candidate = tuple[int, Setting]
"""A layer and a setting."""

DRAWS = 2000
CONFIDENCE = 0.8
# Scores closer than this are the same score: sums of integers divided by integers differ by more.
_SAME = 1e-9


@dataclass(frozen=True)
class Choice:
    """What was chosen and how sure that is.

    Attributes:
        best: The chosen layer and setting; None if no candidate within the limits is better than vanilla.
        objective: What was minimised.
        score: The chosen one's objective, on the pictures it was chosen on.
        vanilla: The unsteered model's.
        feasible: The candidates that may be chosen, best first: within the limits, and safely so.
        broken: The limits that candidates break on these pictures.
        unsafe: Candidates within the limits on these pictures, but not in enough bootstrap draws of them, and in
            which share of the draws they are.
        wins: Share of bootstrap draws in which a candidate would have been chosen; vanilla under None.
        plateau: Feasible candidates that cannot be told from the chosen one (paired 95 % interval holds 0).
        out_of_bag: Change against vanilla of what each draw chose, on the pictures that were not in the draw: the
            gain without the optimism of choosing and measuring on the same pictures. Mean and 95 % interval.
    """

    best: Candidate | None
    objective: str
    score: float
    vanilla: float
    feasible: list[Candidate]
    broken: dict[Candidate, list[str]]
    unsafe: dict[Candidate, float] = field(default_factory=dict)
    wins: dict[Candidate | None, float] = field(default_factory=dict)
    plateau: list[Candidate] = field(default_factory=list)
    out_of_bag: tuple[float, float, float] = (0.0, 0.0, 0.0)


def gentleness(candidate: Candidate) -> tuple[Any, ...]:
    """Order of preference among equals: the weakest push, gated before constant, then the flattest gate, then the
    earliest layer.
    """
    layer, setting = candidate
    gate = setting.mode == "add", setting.k
    return setting.alpha_max, *gate, setting.steer_first_token, layer, setting.pool, setting.span


def choose(
    candidates: Mapping[Candidate, Counts],
    vanilla: Counts,
    objective: str,
    limits: Limits,
    labelled: bool,
    draws: int = DRAWS,
    seed: int = 0,
    confidence: float = 0.0,
) -> Choice:
    """Choose among candidates that were all decoded on the same pictures as vanilla.

    The best candidate tends to lie at the edge of a limit, where luck decides on which side it is found. So it also
    has to be within the limits in a share of `confidence` of the bootstrap draws of the pictures.

    Raises:
        InputError: There is no such objective.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"there is no objective {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    order = sorted(candidates, key=gentleness)
    ids = vanilla.ids
    values = np.stack([vanilla.values, *(candidates[c].ordered(ids).values for c in order)])
    judge = _Judge(values, vanilla.columns, objective, limits, labelled)
    scores, within, margins = judge(np.ones((1, len(ids))))
    held = _held(judge, draws, seed)
    safe = within[:, 0] & (held >= confidence)
    safe[0] = True
    points = {c: float(scores[place, 0]) for place, c in enumerate(order, start=1)}
    feasible = sorted((c for place, c in enumerate(order, start=1) if safe[place]), key=lambda c: points[c])
    winner = int(_winners(scores, safe[:, None])[0])
    best = None if winner == 0 else order[winner - 1]
    wins, out_of_bag, better = _bootstrap(judge, safe, winner, draws, seed)
    return Choice(
        best=best,
        objective=objective,
        score=float(scores[winner, 0]),
        vanilla=float(scores[0, 0]),
        feasible=feasible,
        broken={
            c: [name for name, margin in margins.items() if margin[place, 0] < -_SAME]
            for place, c in enumerate(order, start=1)
            if not within[place, 0]
        },
        unsafe={
            c: float(held[place]) for place, c in enumerate(order, start=1) if within[place, 0] and not safe[place]
        },
        wins={None if place == 0 else order[place - 1]: share for place, share in wins.items()},
        plateau=[c for place, c in enumerate(order, start=1) if c in feasible and c != best and not better[place]],
        out_of_bag=out_of_bag,
    )


class _Judge:
    """Objective and limits of all candidates, vanilla first, for many weightings of the pictures at once."""

    def __init__(self, values: Floats, columns: Sequence[str], objective: str, limits: Limits, labelled: bool) -> None:
        self.places, self.size, _ = values.shape
        self.columns = columns
        self._flat = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(self.size, -1)
        self.objective, self.limits, self.labelled = OBJECTIVES[objective], limits, labelled

    def __call__(self, weights: Floats) -> tuple[Floats, Any, dict[str, Floats]]:
        """Scores, whether within the limits, and margins: (candidates, draws) each."""
        sums = (weights @ self._flat).reshape(len(weights), self.places, len(self.columns)).transpose(2, 1, 0)
        by_column = dict(zip(self.columns, sums, strict=True))
        vanilla = {name: column[:1] for name, column in by_column.items()}
        scores = self.objective(by_column)
        margins = self.limits.margins(by_column, vanilla, self.labelled)
        within = np.logical_and.reduce([margin >= -_SAME for margin in margins.values()])
        within[0] = True
        return scores, within, margins


def _winners(scores: Floats, within: Any) -> Any:
    """The best place within the limits for each draw; the first, which is the gentlest, among equals."""
    allowed = np.where(within, scores, np.inf)
    return (allowed <= allowed.min(0) + _SAME).argmax(0)


def _draws(size: int, draws: int, seed: int) -> Iterator[Floats]:
    """How often each picture is drawn, in blocks of draws."""
    random = np.random.default_rng(seed)
    for start in range(0, draws, 200):
        yield random.multinomial(size, np.full(size, 1 / size), size=min(200, draws - start)).astype(np.float64)


def _held(judge: _Judge, draws: int, seed: int) -> Floats:
    """In which share of the draws each place is within the limits."""
    found = [judge(weights)[1] for weights in _draws(judge.size, draws, seed)]
    share: Floats = np.concatenate(found, axis=1).mean(1)
    return share


def _bootstrap(
    judge: _Judge, safe: Any, winner: int, draws: int, seed: int
) -> tuple[dict[int, float], tuple[float, float, float], Any]:
    """How often each safe place wins, the out-of-bag gain, and which places are clearly worse than the winner."""
    won = np.zeros(judge.places)
    gains: list[Floats] = []
    differences: list[Floats] = []
    for weights in _draws(judge.size, draws, seed):
        scores, within, _ = judge(weights)
        chosen = _winners(scores, within & safe[:, None])
        won += np.bincount(chosen, minlength=judge.places)
        rest, _, _ = judge((weights == 0).astype(np.float64))
        gains.append(rest[chosen, np.arange(len(weights))] - rest[0])
        differences.append(scores - scores[winner])
    gain = np.concatenate(gains)
    low, high = np.quantile(gain, (0.025, 0.975))
    better = np.quantile(np.concatenate(differences, axis=1), 0.025, axis=1) > 0
    shares = {place: float(count / draws) for place, count in enumerate(won) if count}
    return shares, (float(gain.mean()), float(low), float(high)), better
