"""Task transfer: how the settings chosen on captions, and their neighbours, do on POPE's yes/no questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..evaluate.scoring import Scoring, score_answers
from ..evaluate.tasks.base import Sample, Task
from ..metrics.statistics import compare, scores
from .grid import neighbours
from .scoring import Limits, Scorer
from .search import Progress, Search
from .selection import Candidate
from .settings import VANILLA, Setting
from .store import UNSTEERED, Store


def pope_settings(best: Candidate, tried: Sequence[Setting]) -> list[Setting]:
    """Vanilla, the choice and its neighbours, each with the first token unsteered and steered."""
    chosen = best[1]
    around = [chosen, *neighbours(chosen, tried)]
    found = [replace(setting, steer_first_token=first) for first in (False, True) for setting in around]
    return [VANILLA, *dict.fromkeys([chosen, *found])]


def check_pope(
    subject: Any,
    task: Task,
    store: Store,
    best: Candidate,
    tried: Sequence[Setting],
    rows: int,
    draws: int,
    seed: int,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Answer POPE's questions with the chosen setting and around it.

    Args:
        subject: The stock model and its processor.
        task: POPE's questions, about pictures that were not used for choosing.
        store: Keeps the answers.
        best: The chosen layer and setting.
        tried: The settings that were tried at that layer.
        rows: Largest batch.
        draws: Of the bootstrap.
        seed: Of the bootstrap.
        progress: Is told how far it is.

    Returns:
        For each setting its description, scores, and the change of accuracy against vanilla.
    """
    search = Search(
        subject=subject,
        task=task,
        samples=task.samples,
        store=store,
        scorer=Scorer(task.samples, task.name, labelled=False),
        limits=Limits(),
        max_new_tokens=task.max_new_tokens,
        rows=rows,
        progress=progress,
    )
    layer = best[0]
    settings = pope_settings(best, tried)
    search.decode(layer, settings, task.samples)
    counted = {s: _score(task, store, (layer, s)) for s in settings}
    vanilla = counted[VANILLA]
    found = []
    for setting, scored in counted.items():
        change = compare(vanilla.counts, scored.counts, scored.metrics, draws, seed)["accuracy"]
        found.append(
            {
                "setting": ("chosen: " if setting == best[1] else "") + setting.describe(),
                **setting.record(),
                "scores": {name: round(value, 6) for name, value in scores(scored.counts, scored.metrics).items()},
                "change": f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]",
            }
        )
    return found


def _score(task: Task, store: Store, candidate: Candidate) -> Any:
    rows = store.rows(UNSTEERED if candidate[1] == VANILLA else candidate)
    samples: list[Sample] = task.samples
    answers = [{"finished": True, **rows[sample.id]} for sample in samples]
    return score_answers(task.name, "pope", samples, answers, Scoring())
