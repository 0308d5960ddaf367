"""Settings of any decoding method, chosen as `rudder calibrate` chooses RUDDER's.

The same images, objective, recall floor, fluency limits, early stopping and choice, on settings that are listed from
gentle to strong. A method is run as users run it, one setting after the other; every batch is stored before the next
begins, so that a killed search goes on where it was.

```python
data = find_data(DataOptions(), limit=100, check=0)
with MethodSearch(loaded, data, Path("tuning")) as search:
    tuning = search.tune([methods.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)])
tuning.chosen  # place of the chosen one in the list, None if none beats vanilla within the limits
```
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import methods
from ..evaluate.folder import Answers
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions, answer_batch
from ..evaluate.tasks.base import Sample
from ..methods import Method
from ..metrics.errors import InputError
from ..runtime.decoding import Decoding
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, no_progress
from ..runtime.store import Store
from .choice import LABELLED
from .data import CalibrationData, batches
from .search import Search, rounded_scores
from .settings import CalibrationOptions

BATCH_SIZE = 25


@dataclass(frozen=True)
class Tuning:
    """What was chosen for a method, and from what.

    Attributes:
        method: Its name.
        decoding: Under which it was tuned.
        objective: What was minimised.
        limits: What a setting must not break, against vanilla.
        images: On which.
        vanilla: The unsteered model's scores.
        tried: All settings, gentle first: each with `settings` of the method and what `calibration.json` says of one.
        chosen: Place of the chosen one; None if none within the limits is better than vanilla.
        out_of_bag: Change of the objective against vanilla without the optimism of choosing: mean and 95 % interval.
        seconds: Of decoding.
    """

    method: str
    decoding: dict[str, Any]
    objective: str
    limits: dict[str, float]
    images: list[int | str]
    vanilla: dict[str, float]
    tried: list[dict[str, Any]]
    chosen: int | None
    out_of_bag: list[float]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)


class MethodSearch(Search[str]):
    """Runs methods on calibration images and remembers the answers; a context manager. Candidates are named by `_key`.

    Args:
        loaded: The stock model and its processor.
        data: The images; those to choose with are used.
        folder: Where answers are kept, new or this search's own.
        options: Objective, limits, longest answer, bootstrap: as for `rudder calibrate`.
        decoding: "greedy", or "beam" for methods that know nothing else.
        num_beams: Of "beam".
        batch_size: Images per batch.
        progress: Is called with what is done.

    Raises:
        InputError: The images have no annotations and the objective needs them, or the folder is another's.
    """

    batch_kind = Answers

    def __init__(
        self,
        loaded: LoadedModel,
        data: CalibrationData,
        folder: Path,
        options: CalibrationOptions | None = None,
        decoding: str = "greedy",
        num_beams: int = 5,
        batch_size: int = BATCH_SIZE,
        progress: Progress = no_progress,
    ) -> None:
        options = options or CalibrationOptions()
        if options.objective not in LABELLED or not data.labelled:
            raise InputError("methods are tuned on annotated images: use them, with chair_s, chair_i or mean")
        vanilla, store = methods.get("vanilla"), Store(folder, "calibrate")
        super().__init__(loaded, data.task, data.choosing, store, options, _key(vanilla), progress)
        self.decoding = Decoding(decoding, options.max_new_tokens or data.task.max_new_tokens, num_beams)
        self.batch_size = batch_size
        self._methods = {self.vanilla: vanilla}
        self._seconds: dict[str, float] = {}
        store.start(
            {
                "model": loaded.record(),
                "data": data.record,
                "images": [sample.id for sample in data.choosing],
                "prompt": data.choosing[0].prompt,
                "decoding": self.decoding.record(),
            }
        )

    def _take(self, batch: Mapping[str, Any]) -> None:
        key = batch["method"]
        self.answers.setdefault(key, {}).update({row["id"]: row for row in batch["rows"]})
        self._seconds[key] = self._seconds.get(key, 0.0) + batch["seconds"]

    def _described(self, candidate: str) -> dict[str, Any]:
        return {"settings": settings_record(self._methods[candidate])}

    def decode(self, candidates: Sequence[str], samples: Sequence[Sample]) -> None:
        """Run one setting after the other."""
        options = RunOptions(self.batch_size, self.options.seed)
        for key in candidates:
            method = self._methods[key]
            missing = [sample for sample in samples if sample.id not in self.answers.get(key, {})]
            for part in batches(missing, self.batch_size):
                self.progress(f"tuning {method.name}", len(self.answers.get(key, {})), len(samples))
                start = time.perf_counter()
                rows = answer_batch(self.task, self.loaded, method, part, self.decoding, options)
                self.add({"method": key, "rows": rows, "seconds": round(time.perf_counter() - start, 3)})

    def tune(self, candidates: Sequence[Method]) -> Tuning:
        """Choose one of several settings of a method.

        Args:
            candidates: The settings, gentle first: among equals the gentler one is chosen.

        Raises:
            ValueError: There is nothing to choose from.
        """
        if not candidates:
            raise ValueError("There are no settings to choose from.")
        keys = [_key(method) for method in candidates]
        self._methods |= zip(keys, candidates, strict=True)
        dropped = self.run(keys)
        scored = {key: self.scored(key) for key in keys}
        choice = self.choose({key: own.counts for key, own in scored.items() if key not in dropped})
        entries = dict(zip(scored, self.entries(scored, choice, dropped), strict=True))
        return Tuning(
            method=candidates[0].name,
            decoding=self.decoding.record(),
            objective=choice.objective,
            limits=self.options.limits.record(True),
            images=[sample.image_id for sample in self.samples],
            vanilla=rounded_scores(self.scored(self.vanilla)),
            tried=[entries[key] for key in keys],
            chosen=None if choice.best is None else keys.index(choice.best),
            out_of_bag=[round(value, 6) for value in choice.out_of_bag],
            seconds=round(sum(self._seconds.get(key, 0.0) for key in scored), 1),
        )


def _key(method: Method) -> str:
    """What tells a setting from others, in any run of the search."""
    return json.dumps({"method": method.name, **settings_record(method)}, sort_keys=True)
