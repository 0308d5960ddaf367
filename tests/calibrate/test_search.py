"""One search for every method: the planted best is found, whatever the method is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rudder_hf.calibrate import Rule
from rudder_hf.calibrate.search import search
from rudder_hf.evaluate.run import Run, RunOptions
from rudder_hf.methods import Generate, Method
from rudder_hf.runtime.decoding import Decoding
from tests.support.evaluating import loaded, scenes


@dataclass(frozen=True)
class Planted(Method):
    """A method whose captions are known: true objects, and the fewer absent ones the stronger, until it breaks."""

    name = "planted"

    strength: int = 0
    truth: dict[str, list[str]] = field(default_factory=dict, compare=False)

    def settings(self) -> dict[str, Any]:
        return {"strength": self.strength}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Generate]:
        def generate(*args: Any, sample_ids: list[str], input_ids: Any, **kwargs: Any) -> Any:
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
        return list(loaded().processor.tokenizer.convert_tokens_to_ids([w for w in words if w] or ["a"]))


@pytest.mark.parametrize("objective", ["f1", "paper"])
def test_the_planted_best_is_found_for_each_name(tmp_path: Path, objective: str) -> None:
    task = scenes(6)
    truth = {sample.id: sample.reference["objects"] for sample in task.samples}
    rule = Rule(objective, distinct_drop=1.0, repeated_rise=1.0, bootstrap=50)
    run = Run(tmp_path / "run").begin(task, loaded(), Decoding("greedy", 12), RunOptions(2, likelihood="none"))
    lists = {"all": (0, 1, 2, 3, 4), "backwards": (3, 1, 4), "equals": (0, 3, 3), "broken": (4,)}
    candidates = {name: [Planted(s, truth) for s in strengths] for name, strengths in lists.items()}
    found = search(run, candidates, rule)
    # 3 names nothing absent, 4 neither anything present; of equals the first, which is the gentlest.
    assert {name: choice.best for name, choice in found.items()} == {
        "all": 3, "backwards": 0, "equals": 1, "broken": None,
    }  # fmt: skip
    assert "recall" in found["all"].broken[4]
    # Each variant was answered once, however many names have it.
    assert len(run.answers()) == 6 * 6
