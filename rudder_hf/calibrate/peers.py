"""Settings of any decoding method, chosen as `rudder calibrate` chooses RUDDER's.

The same images, objective, recall floor, fluency limits and choice, on settings that are listed from gentle to strong.
A method is run as `rudder evaluate` runs it, each setting in a folder of its own, so that a killed search goes on
where it was.

```python
data = find_data(DataOptions(), limit=100, check=0)
search = MethodSearch(loaded, data, Path("tuning"))
tuning = search.tune([methods.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)])
tuning.chosen  # place of the chosen one in the list, None if none beats vanilla within the limits
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import methods
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions, write_answers
from ..evaluate.scoring import Scored, Scoring, score_answers
from ..evaluate.tasks import Task
from ..methods import Method
from ..metrics.errors import InputError
from ..runtime.decoding import Decoding
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, consecutive, no_progress
from .choice import LABELLED, scores_entry
from .data import CalibrationData
from .settings import CalibrationOptions

BATCH_SIZE = 25


@dataclass(frozen=True)
class Tuning:
    """What was chosen for a method, and from what.

    Attributes:
        method: Its name.
        decoding: Under which it was tuned.
        vanilla: The unsteered model's scores.
        tried: All settings, gentle first: each with `settings` of the method and what `calibration.json` says of one.
        chosen: Place of the chosen one; None if none within the limits is better than vanilla.
        out_of_bag: Change of the objective against vanilla without the optimism of choosing: mean and 95 % interval.
    """

    method: str
    decoding: dict[str, Any]
    vanilla: dict[str, float]
    tried: list[dict[str, Any]]
    chosen: int | None
    out_of_bag: list[float]


class MethodSearch:
    """Runs methods on calibration images and chooses among their settings.

    Args:
        loaded: The stock model and its processor.
        data: The images; those to choose with are used.
        folder: Where answers are kept, new or this search's own.
        options: Objective, limits, longest answer, bootstrap: as for `rudder calibrate`.
        decoding: "greedy", or "beam" for methods that know nothing else.
        num_beams: Of "beam".
        batch_size: Images per batch.

    Raises:
        InputError: The images have no annotations and the objective needs them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        data: CalibrationData,
        folder: Path,
        options: CalibrationOptions | None = None,
        decoding: str = "greedy",
        num_beams: int = 5,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.options = options or CalibrationOptions()
        if self.options.objective not in LABELLED or not data.labelled:
            raise InputError(f"methods are tuned on annotated images: use them, with one of {', '.join(LABELLED)}")
        self.loaded, self.folder = loaded, folder
        self.task = replace(data.task, samples=data.choosing)
        self.decoding = Decoding(decoding, self.options.max_new_tokens or data.task.max_new_tokens, num_beams)
        self.run_options = RunOptions(batch_size, self.options.seed)

    def tune(self, candidates: Sequence[Method], progress: Progress = no_progress) -> Tuning:
        """Choose one of several settings of a method.

        Args:
            candidates: The settings, gentle first: among equals the gentler one is chosen.
            progress: Is called with how many answers there are of vanilla and all settings.

        Raises:
            ValueError: There is nothing to choose from.
            InputError: The folder belongs to other images or options.
        """
        if not candidates:
            raise ValueError("There are no settings to choose from.")
        name, size = candidates[0].name, len(candidates)
        texts = [f"tuning {name}, vanilla", *(f"tuning {name}, setting {n} of {size}" for n in range(1, size + 1))]
        parts = consecutive(progress, [len(self.task.samples)] * len(texts))
        asked = zip((methods.get("vanilla"), *candidates), texts, parts, strict=True)
        vanilla, *scored = (self._scored(*one) for one in asked)
        choice = self.options.choose({place: own.counts for place, own in enumerate(scored)}, vanilla.counts)
        return Tuning(
            method=name,
            decoding=self.decoding.record(),
            vanilla=scores_entry(vanilla)["scores"],
            tried=[
                {"settings": settings_record(method)} | choice.entry(place, scored[place])
                for place, method in enumerate(candidates)
            ],
            chosen=choice.best,
            out_of_bag=[round(value, 6) for value in choice.out_of_bag],
        )

    def _scored(self, method: Method, text: str, progress: Progress) -> Scored:
        settings = hashlib.sha256(json.dumps(method.settings(), sort_keys=True).encode()).hexdigest()[:12]
        return run_and_score(
            self.task, self.loaded, method, self.decoding, self.folder / f"{method.name}-{settings}",
            self.run_options, Scoring(self.options.lineage),
            lambda _, done, total: progress(text, done, total),
        )  # fmt: skip


def run_and_score(
    task: Task, loaded: LoadedModel, method: Method, decoding: Decoding, folder: Path, options: RunOptions,
    scoring: Scoring, progress: Progress,
) -> Scored:  # fmt: skip
    """Run a method on a task as `evaluate` does, or what is left of it, and score its answers."""
    _, done = write_answers(task, loaded, [method], decoding, folder, options, progress=progress)
    rows = [done[method.name, sample.id] for sample in task.samples]
    return score_answers(task.name, task.kind, task.samples, rows, scoring)
