"""Settings of any method, chosen as RUDDER's are: the planted best is found, and a killed search goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rudder_hf.calibrate import CalibrationOptions, Limits, find_data
from rudder_hf.calibrate.peers import MethodSearch, Tuning
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.methods import Generate, Method
from rudder_hf.metrics.errors import InputError
from tests.support.evaluating import loaded


@dataclass(frozen=True)
class Planted(Method):
    """A method whose captions are known: true objects, and the fewer absent ones the stronger, until it breaks."""

    name = "planted"

    strength: int = 0
    truth: dict[str, list[str]] = field(default_factory=dict, compare=False)
    processor: Any = field(default=None, compare=False)
    log: list[str] = field(default_factory=list, compare=False)
    fail_after: int = field(default=10**9, compare=False)

    def settings(self) -> dict[str, Any]:
        return {"strength": self.strength}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Generate]:
        def generate(*args: Any, sample_ids: list[str], input_ids: Any, **kwargs: Any) -> Any:
            if len(self.log) >= self.fail_after:
                raise KeyboardInterrupt
            self.log.extend(sample_ids)
            rows = [self.caption(sample) for sample in sample_ids]
            width = max(len(row) for row in rows)
            answers = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
            return torch.cat([input_ids, answers], dim=1)

        yield generate

    def caption(self, sample: str) -> list[int]:
        present = [name for name in self.truth[sample] if " " not in name]
        absent = [name for name in ("elephant", "keyboard", "oven", "kite") if name not in self.truth[sample]]
        words = present if self.strength < 4 else []
        words = [*words, *absent[: max(0, 3 - self.strength)]]
        return list(self.processor.tokenizer.convert_tokens_to_ids([w for w in words if w] or ["a"]))


def search(out: Path, images: int = 6, objective: str = "f1") -> MethodSearch:
    limits = Limits(nll_rise=100.0, distinct_drop=1.0)
    options = CalibrationOptions(limits=limits, bootstrap=50, max_new_tokens=3, objective=objective)
    return MethodSearch(loaded(), find_data(DataOptions(), images, 0), out, options, batch_size=2)


def planted(found: MethodSearch, strengths: tuple[int, ...] = (0, 1, 2, 3, 4), **changes: Any) -> list[Planted]:
    truth = {sample.id: sample.reference["objects"] for sample in found.task.samples}
    log = changes.pop("log", [])
    processor = loaded().processor
    return [Planted(s, truth=truth, processor=processor, log=log, **changes) for s in strengths]


@pytest.mark.parametrize("objective", ["f1", "paper"])
@pytest.mark.parametrize("strengths", [(0, 1, 2, 3, 4), (3, 1, 4), (0, 3, 3)])
def test_tuning_finds_the_planted_best(tmp_path: Path, strengths: tuple[int, ...], objective: str) -> None:
    found = search(tmp_path / "s", objective=objective)
    tuning = found.tune(planted(found, strengths))
    # 3 names nothing absent, 4 neither anything present; of equals the first, which is the gentlest.
    assert tuning.chosen == strengths.index(3)
    best = tuning.tried[tuning.chosen]
    assert (best["scores"]["chair_s"], best["breaks"]) == (0.0, [])
    assert [entry["settings"] for entry in tuning.tried] == [{"strength": s} for s in strengths]
    if 4 in strengths:
        assert tuning.tried[strengths.index(4)]["breaks"] == ["recall"]
    assert json.loads(json.dumps(asdict(tuning)))["method"] == "planted"


def test_nothing_is_chosen_where_nothing_is_better(tmp_path: Path) -> None:
    found = search(tmp_path / "s")
    tuning = found.tune(planted(found, (4,)))
    assert tuning.chosen is None


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    log: list[str] = []

    def tuned(folder: str = "s", **changes: Any) -> Tuning:
        found = search(tmp_path / folder)
        return found.tune(planted(found, (0, 3), log=log, **changes))

    with pytest.raises(KeyboardInterrupt):
        tuned(fail_after=8)
    assert len(log) == 8
    # A line that a kill has torn is done again.
    stored = (tmp_path / "s").glob("planted-*/batches/process-0000.jsonl")
    answers = max(stored, key=lambda path: path.stat().st_mtime_ns)
    answers.write_bytes(answers.read_bytes()[:-5])
    again = tuned()
    assert len(log) == 12 + 2
    assert tuned() == again
    assert len(log) == 14
    assert tuned("whole") == again
    found = search(tmp_path / "s", images=4)
    with pytest.raises(InputError, match="toy with samples 6; this command has samples 4"):
        found.tune(planted(found, (0, 3)))
