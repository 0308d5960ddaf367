"""Ways to get it wrong that look right at first. The parity suite has to catch each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rudder_hf.integrations.vllm.planning import Changes, Planned, Planner
from rudder_hf.integrations.vllm.scheduler import RudderScheduler
from rudder_hf.integrations.vllm.worker import RudderWorker


class ByRow(Planner):
    """Keeps state by the row of the batch, which changes as requests come and go."""

    def plan(self, requests: Sequence[str], *args: Any, **kwargs: Any) -> Changes:
        owned = {name: self.requests[name].slot for name in requests}
        for row, name in enumerate(requests):
            if self.requests[name].slot != self.spare_slot:
                self.requests[name].slot = row
        changes = super().plan(requests, *args, **kwargs)
        for name, slot in owned.items():
            self.requests[name].slot = slot
        return changes


class ByQueryLength(Planner):
    """Takes single tokens for answers, which the last chunk of a prompt may be too."""

    def classify(self, positions: Any, prompt_lengths: Any, first: Any, counts: Any) -> Any:
        prompt = counts > 1
        return prompt, ~prompt | (first & (positions == prompt_lengths - 1))


class NoBlockSums(Planner):
    """Forgets what the cached part of a prompt contributed."""

    def admit(self, request: str, planned: Planned, cached_blocks: Sequence[int] = ()) -> int:
        return super().admit(request, planned)


class ControlWorker(RudderWorker):
    """A worker whose runner plans with `planner_class`."""

    planner_class: type[Planner]

    def init_device(self) -> None:
        super().init_device()
        self.model_runner.planner_class = self.planner_class


class ByRowWorker(ControlWorker):
    planner_class = ByRow


class ByQueryLengthWorker(ControlWorker):
    planner_class = ByQueryLength


class NoBlockSumsWorker(ControlWorker):
    planner_class = NoBlockSums


class SharedBlocksScheduler(RudderScheduler):
    """Shares blocks of steered answers with everyone."""

    def separate(self, request: Any, clean: int) -> None:
        pass
