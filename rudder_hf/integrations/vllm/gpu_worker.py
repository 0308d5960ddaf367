"""The worker of an engine on a GPU."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from .runner import SteeredRunner, steered_runner


class RudderGPUWorker(Worker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""

    runner_mixin: type[SteeredRunner] = SteeredRunner

    def init_device(self) -> None:
        """Build vLLM's runner and put RUDDER's plan in front of it."""
        super().init_device()
        steered_runner(self.model_runner, self.runner_mixin)

    def determine_available_memory(self) -> int:
        """Leave room for the sums of the prefix cache's blocks."""
        return self.model_runner.beside_sums(super().determine_available_memory())  # type: ignore[no-any-return]
