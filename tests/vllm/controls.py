"""Ways to get it wrong that look right at first. The parity suite has to catch each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rudder_hf.integrations.vllm.cpu_worker import RudderCPUWorker
from rudder_hf.integrations.vllm.planning import Changes, Planner
from rudder_hf.integrations.vllm.runner import SteeredRunner
from rudder_hf.integrations.vllm.scheduler import RudderScheduler


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

    def admit(self, *args: Any, **kwargs: Any) -> int:
        return super().admit(*args[:5])


class ByRowRunner(SteeredRunner):
    def make_planner(self, slots: int, max_tokens: int) -> Planner:
        return ByRow(slots, max_tokens)


class ByQueryLengthRunner(SteeredRunner):
    def make_planner(self, slots: int, max_tokens: int) -> Planner:
        return ByQueryLength(slots, max_tokens)


class NoBlockSumsRunner(SteeredRunner):
    def make_planner(self, slots: int, max_tokens: int) -> Planner:
        return NoBlockSums(slots, max_tokens)


class ByRowWorker(RudderCPUWorker):
    runner_mixin = ByRowRunner


class ByQueryLengthWorker(RudderCPUWorker):
    runner_mixin = ByQueryLengthRunner


class NoBlockSumsWorker(RudderCPUWorker):
    runner_mixin = NoBlockSumsRunner


class SharedBlocksScheduler(RudderScheduler):
    """Shares blocks of steered answers with everyone."""

    def separate(self, request: Any, clean: int) -> None:
        pass
