"""Settings of any decoding method, chosen as `rudder calibrate` chooses RUDDER's.

The same pictures, objective, recall floor, fluency limits, early stopping (`stopping.hopeless`) and choice
(`selection.choose`), on settings that are listed from gentle to strong. A peer is run as users run it, one setting
after the other; every batch is stored before the next begins, so that a killed search goes on where it was.

```python
data = find_data(DataOptions(), pictures=100, check=0)
with MethodSearch(subject, data, Path("tuning")) as search:
    tuning = search.tune([interventions.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)])
tuning.chosen  # place of the chosen one in the list, None if none beats vanilla within the limits
```
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import methods as interventions
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions, answer_batch
from ..evaluate.tasks.base import Sample
from ..methods import Intervention
from ..metrics.errors import InputError
from ..metrics.statistics import Counts, scores
from ..runtime.decoding import Decoding
from ..runtime.journal import Journal, read_batches, write_new
from ..runtime.models import Subject
from .data import CalibrationData, batches
from .run import CalibrationOptions
from .scoring import LABELLED, OBJECTIVES, Scorer
from .selection import Candidate, choose
from .settings import Setting
from .stopping import hopeless, looks

BATCH_SIZE = 25
Progress = Callable[[str, int, int], None]
Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Tried:
    """One setting and what it reached on the pictures that it got to.

    Attributes:
        settings: Of the method.
        pictures: How many it was run on.
        objective: What was minimised.
        scores: All metrics.
        dropped: The limit for which it was stopped early; empty if it was not.
        breaks: The limits that it breaks on all pictures, or in which share of bootstrap draws it keeps them, where
            that is too rarely to be chosen.
    """

    settings: dict[str, Any]
    pictures: int
    objective: float
    scores: dict[str, float]
    dropped: str
    breaks: list[str]


@dataclass(frozen=True)
class Tuning:
    """What was chosen for a method, and from what.

    Attributes:
        method: Its name.
        decoding: Under which it was tuned.
        objective: What was minimised.
        limits: What a setting must not break, against vanilla.
        pictures: On which.
        vanilla: The unsteered model's scores.
        tried: All settings, gentle first.
        chosen: Place of the chosen one; None if none within the limits is better than vanilla.
        won_draws: Share of bootstrap draws of the pictures in which it would have been chosen.
        out_of_bag: Change of the objective against vanilla without the optimism of choosing: mean and 95 % interval.
        seconds: Of decoding.
    """

    method: str
    decoding: dict[str, Any]
    objective: str
    limits: dict[str, float]
    pictures: list[int | str]
    vanilla: dict[str, float]
    tried: list[Tried]
    chosen: int | None
    won_draws: float
    out_of_bag: tuple[float, float, float]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


class MethodSearch:
    """Runs methods on calibration pictures and remembers the answers; a context manager.

    Args:
        subject: The stock model and its processor.
        data: The pictures; those to choose with are used.
        folder: Where answers are kept, new or this search's own.
        options: Objective, limits, longest answer, bootstrap: as for `rudder calibrate`.
        decoding: "greedy", or "beam" for methods that know nothing else.
        num_beams: Of "beam".
        batch_size: Pictures per batch.
        progress: Is told what is done, how many pictures of how many.

    Raises:
        InputError: The pictures have no annotations and the objective needs them, or the folder is another's.
    """

    def __init__(
        self,
        subject: Subject,
        data: CalibrationData,
        folder: Path,
        options: CalibrationOptions | None = None,
        decoding: str = "greedy",
        num_beams: int = 5,
        batch_size: int = BATCH_SIZE,
        progress: Progress | None = None,
    ) -> None:
        self.subject, self.data, self.folder = subject, data, folder
        self.options = options or CalibrationOptions()
        if self.options.objective not in LABELLED or not data.labelled:
            raise InputError("methods are tuned on annotated pictures: use them, with chair_s, chair_i or mean")
        longest = self.options.max_new_tokens or data.task.max_new_tokens
        self.decoding = Decoding(decoding, longest, num_beams)
        self.batch_size, self.progress = batch_size, progress
        self.scorer = Scorer(data.choosing, data.task.name, data.labelled, self.options.lineage)
        self._check_plan()
        self._journal = Journal(folder / "answers")
        self._answers: dict[str, Rows] = {}
        self._seconds: dict[str, float] = {}

    def _check_plan(self) -> None:
        plan = {
            "model": self.subject.record(),
            "data": self.data.record,
            "pictures": [sample.id for sample in self.data.choosing],
            "prompt": self.data.choosing[0].prompt,
            "decoding": self.decoding.record(),
        }
        path = self.folder / "plan.json"
        if write_new(path, json.dumps(plan, indent=1) + "\n"):
            return
        known, wanted = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(plan))
        if different := sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name)):
            raise InputError(f"{self.folder} holds a search with another {', '.join(different)}: choose a new folder")

    def __enter__(self) -> MethodSearch:
        self._journal.__enter__()
        for batch in read_batches(self.folder / "answers"):
            self._take(batch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    def _take(self, batch: dict[str, Any]) -> None:
        self._answers.setdefault(batch["key"], {}).update({row["id"]: row for row in batch["rows"]})
        self._seconds[batch["key"]] = self._seconds.get(batch["key"], 0.0) + batch["seconds"]

    def tune(self, methods: Sequence[Intervention]) -> Tuning:
        """Choose one of several settings of a method.

        Args:
            methods: The settings, gentle first: among equals the gentler one is chosen.

        Raises:
            ValueError: There is nothing to choose from.
        """
        if not methods:
            raise ValueError("There are no settings to choose from.")
        vanilla = interventions.get("vanilla")
        samples = self.data.choosing
        stops = looks(len(samples)) if self.options.early else []
        dropped: dict[int, str] = {}
        for stop in [*stops, len(samples)]:
            self._decode(vanilla, samples[:stop])
            base = self._counts(vanilla, samples[:stop])
            for place, method in enumerate(methods):
                if place in dropped:
                    continue
                self._decode(method, samples[:stop])
                counts = self._counts(method, samples[:stop])
                limit = hopeless(counts, base, self.options.limits, True, len(samples), max(1, len(stops)))
                if limit is not None:
                    dropped[place] = f"{limit} after {stop} pictures"
        return self._choose(methods, self._counts(vanilla, samples), dropped)

    def _choose(self, methods: Sequence[Intervention], vanilla: Counts, dropped: dict[int, str]) -> Tuning:
        options = self.options
        counts = {place: self._counts(method, self.data.choosing) for place, method in enumerate(methods)}
        # Settings are told apart by their place, which grows with the strength, as that is what breaks ties.
        standing: dict[int, Candidate] = {place: (0, Setting(alpha_max=place + 1.0)) for place in counts}
        rivals = {standing[place]: counts[place] for place in counts if place not in dropped}
        broken: dict[Candidate, list[str]] = {}
        chosen, won, out_of_bag = None, 0.0, (0.0, 0.0, 0.0)
        if rivals:
            choice = choose(
                rivals, vanilla, options.objective, options.limits, True, options.draws, options.seed,
                options.confidence,
            )  # fmt: skip
            unsafe = {candidate: [f"kept in {held:.0%} of draws"] for candidate, held in choice.unsafe.items()}
            broken, out_of_bag = {**choice.broken, **unsafe}, choice.out_of_bag
            chosen = next((place for place, candidate in standing.items() if candidate == choice.best), None)
            won = choice.wins.get(choice.best, 0.0)
        tried = [
            Tried(
                settings=settings_record(method),
                pictures=len(counts[place].ids),
                objective=round(float(OBJECTIVES[options.objective](counts[place].total())), 6),
                scores=self._scores(counts[place]),
                dropped=dropped.get(place, ""),
                breaks=broken.get(standing[place], []),
            )
            for place, method in enumerate(methods)
        ]
        return Tuning(
            method=methods[0].name,
            decoding=self.decoding.record(),
            objective=options.objective,
            limits=options.limits.record(True),
            pictures=[sample.image_id for sample in self.data.choosing],
            vanilla=self._scores(vanilla),
            tried=tried,
            chosen=chosen,
            won_draws=round(won, 4),
            out_of_bag=(round(out_of_bag[0], 6), round(out_of_bag[1], 6), round(out_of_bag[2], 6)),
            seconds=round(sum(self._seconds.get(_key(method), 0.0) for method in methods), 1),
        )

    def _scores(self, counts: Counts) -> dict[str, float]:
        return {name: round(value, 6) for name, value in scores(counts, self.scorer.metrics(counts)).items()}

    def _counts(self, method: Intervention, samples: Sequence[Sample]) -> Counts:
        """Counts on those of the samples that the method got to."""
        rows = self._answers.get(_key(method), {})
        return self.scorer.counts({sample.id: rows[sample.id] for sample in samples if sample.id in rows})

    def _decode(self, method: Intervention, samples: Sequence[Sample]) -> None:
        """See that a method has an answer to every sample."""
        key = _key(method)
        missing = [sample for sample in samples if sample.id not in self._answers.get(key, {})]
        options = RunOptions(self.batch_size, self.options.seed)
        for number, part in enumerate(batches(missing, self.batch_size)):
            if self.progress is not None:
                self.progress(
                    f"tuning {method.name}", len(samples) - len(missing) + number * self.batch_size, len(samples)
                )
            start = time.perf_counter()
            rows = answer_batch(self.data.task, self.subject, method, part, self.decoding, options)
            batch = {"key": key, "rows": rows, "seconds": round(time.perf_counter() - start, 3)}
            self._journal.append(batch)
            self._take(batch)


def _key(method: Intervention) -> str:
    """What tells a setting from others, in any run of the search."""
    return json.dumps({"method": method.name, **settings_record(method)}, sort_keys=True)
