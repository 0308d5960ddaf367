"""Settings proposed by Optuna instead of a grid (extra `tune`), a batch at a time, so that the prefill is shared."""

from __future__ import annotations

import math
from typing import Any

from ..metrics.errors import InputError
from .grid import Grid, absolute
from .scoring import OBJECTIVES
from .search import Search
from .selection import Candidate
from .settings import Setting
from .store import UNSTEERED

BATCH = 12


def tune(
    search: Search,
    layer: int,
    norm: float,
    grid: Grid,
    trials: int,
    objective: str,
    seed: int,
    dropped: dict[Candidate, str],
) -> list[Setting]:
    """Try what Optuna's sampler (TPE with constraints) proposes within the range of the grid.

    The proposals follow from the seed and from the results, so that an interrupted run repeats them and finds what it
    has already decoded.

    Args:
        search: Decodes and remembers.
        layer: The layer.
        norm: Length of its hidden states.
        grid: Its smallest and largest strength and k bound the search; modes, pools, spans are chosen among.
        trials: How many settings to try.
        objective: What to minimise.
        seed: Of the sampler.
        dropped: Gets the candidates that were stopped early.

    Raises:
        InputError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("--trials needs Optuna: pip install 'rudder-hf[tune]', or use the grid") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH, **_constraints(optuna))
    study = optuna.create_study(direction="minimize", sampler=sampler)
    found: list[Setting] = []
    while len(study.trials) < trials:
        batch = [study.ask() for _ in range(min(BATCH, trials - len(study.trials)))]
        settings = [_propose(trial, grid, norm) for trial in batch]
        dropped |= search.layer(layer, list(dict.fromkeys(settings)))
        for trial, setting in zip(batch, settings, strict=True):
            score, margins = _judged(search, (layer, setting), objective)
            _constrain(trial, margins)
            study.tell(trial, score)
        found += settings
    return list(dict.fromkeys(found))


def _propose(trial: Any, grid: Grid, norm: float) -> Setting:
    """One setting; strength and k on a logarithmic scale, to two digits, so that proposals can repeat."""

    def between(name: str, values: tuple[float, ...]) -> float:
        low, high = min(values), max(values)
        value = low if low == high else trial.suggest_float(name, low, high, log=True)
        return float(f"{value:.2g}")

    mode = trial.suggest_categorical("mode", list(grid.modes))
    return Setting(
        alpha_max=absolute(between("strength", grid.strengths), norm),
        k=between("k", grid.k) if mode == "beta" else grid.k[0],
        mode=mode,
        pool=trial.suggest_categorical("pool", list(grid.pools)),
        span=trial.suggest_categorical("span", list(grid.spans)),
        steer_first_token=trial.suggest_categorical("steer_first_token", list(grid.steer_first_token)),
    )


def _judged(search: Search, candidate: Candidate, objective: str) -> tuple[float, dict[str, float]]:
    """Objective and margins on the pictures that the candidate got to."""
    rows = search.store.rows(candidate)
    samples = [sample for sample in search.samples if sample.id in rows]
    sums = search.counts(candidate, samples).total()
    vanilla = search.counts(UNSTEERED, samples).total()
    margins = search.limits.margins(sums, vanilla, search.scorer.labelled)
    score = float(OBJECTIVES[objective](sums))
    return (score if math.isfinite(score) else 1.0), {name: float(margin) for name, margin in margins.items()}


def _constraints(optuna: Any) -> dict[str, Any]:
    """How the sampler learns of broken limits before Optuna 5: by a function; since then trials carry them."""
    if hasattr(optuna.trial.Trial, "set_constraint"):
        return {}
    return {"constraints_func": lambda trial: trial.user_attrs["constraints"]}


def _constrain(trial: Any, margins: dict[str, float]) -> None:
    """Tell a trial's limits: Optuna takes values up to 0 as met."""
    if hasattr(trial, "set_constraint"):
        for name, margin in margins.items():
            trial.set_constraint(name, -margin)
    else:
        trial.set_user_attr("constraints", [-margin for margin in margins.values()])
