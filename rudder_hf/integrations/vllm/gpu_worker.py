"""The worker of an engine on a GPU."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from .worker import RudderWorker


class RudderGPUWorker(RudderWorker, Worker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""
