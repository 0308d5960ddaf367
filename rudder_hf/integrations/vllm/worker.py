"""The worker of an engine, on a CPU or on a GPU."""

from __future__ import annotations

from vllm.platforms import current_platform

from .engine import require
from .runner import SteeredRunner

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class RudderWorker(Worker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""

    def init_device(self) -> None:
        """Build vLLM's runner and put RUDDER's plan in front of it."""
        super().init_device()
        stock = type(self.model_runner)
        require(stock, "load_model", "get_model", "initialize_kv_cache", "get_kv_cache_spec")
        require(stock, "_update_states", "_model_forward", "_dummy_run")
        self.model_runner.__class__ = type(f"Steered{stock.__name__}", (SteeredRunner, stock), {})

    def determine_available_memory(self) -> int:
        """Leave room for the sums of the prefix cache's blocks."""
        available: int = super().determine_available_memory()
        return self.model_runner.beside_sums(available)  # type: ignore[no-any-return]
