"""The worker of an engine on a CPU."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from .worker import RudderWorker


class RudderCPUWorker(RudderWorker, CPUWorker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""
