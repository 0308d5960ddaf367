"""The worker of an engine, on a CPU or on a GPU."""

from __future__ import annotations

from vllm.platforms import current_platform

from .runner import steer_runner

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class RudderWorker(Worker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""

    def init_device(self) -> None:
        """Build vLLM's runner and put RUDDER's plan in front of it."""
        super().init_device()
        steer_runner(self.model_runner)

    def determine_available_memory(self) -> int:
        """Leave room for the sums of the prefix cache's blocks."""
        available: int = super().determine_available_memory()
        return self.model_runner.beside_sums(available)  # type: ignore[no-any-return]
