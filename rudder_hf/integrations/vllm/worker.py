"""What RUDDER's workers have in common, whatever device they are for."""

from __future__ import annotations

from typing import Any

from .runner import SteeredRunner, steered_runner


class RudderWorker:
    """Goes before a worker class of vLLM and gives it a runner that plans."""

    runner_mixin: type[SteeredRunner] = SteeredRunner

    # Of vLLM's worker.
    model_runner: Any

    def init_device(self) -> None:
        """Build vLLM's runner and put RUDDER's plan in front of it."""
        super().init_device()  # type: ignore[misc]
        steered_runner(self.model_runner, self.runner_mixin)

    def determine_available_memory(self) -> int:
        """Leave room for the sums of the prefix cache's blocks."""
        available: int = super().determine_available_memory()  # type: ignore[misc]
        return self.model_runner.beside_sums(available)  # type: ignore[no-any-return]
