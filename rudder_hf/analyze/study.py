"""What is analyzed: a model, images, RUDDER's settings, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..core.configuration import RudderConfig
from ..core.settings import CALL_SETTINGS
from ..evaluate.tasks import Task
from ..evaluate.tasks.base import samples_hash
from ..metrics.chair_parsers import Lineage
from ..metrics.errors import InputError
from ..runtime.models import LoadedModel


@dataclass(frozen=True)
class AnalysisOptions:
    """How to analyze."""

    max_new_tokens: int | None = None  # longest answer; None is the task's own
    batch_size: int = 8
    lineage: Lineage = "pattern"  # how mentions are found
    seed: int = 0  # of bootstrap intervals
    command: str = ""  # for the record


@dataclass(frozen=True)
class Study:
    """A model, the images that it is asked about, and RUDDER's settings."""

    loaded: LoadedModel
    task: Task
    config: RudderConfig

    def __post_init__(self) -> None:
        if not self.config.alpha_max > 0:
            raise InputError(
                "alpha_max is 0, so that there is no push to analyze: give --set alpha_max=NUMBER above 0"
            )

    def max_new_tokens(self, options: AnalysisOptions) -> int:
        """Return the length of the longest answer."""
        return options.max_new_tokens or self.task.max_new_tokens

    def record(self, options: AnalysisOptions) -> dict[str, Any]:
        """Return everything that the numbers depend on, as JSON values."""
        samples = self.task.samples
        return {
            "version": __version__,
            "seed": options.seed,
            "model": self.loaded.record(),
            "settings": {name: getattr(self.config, name) for name in ("layer", *CALL_SETTINGS)},
            "data": {"task": self.task.name, **self.task.data, "notes": self.task.notes},
            "images": len(samples),
            "samples": samples_hash(samples),
            "prompts": sorted({sample.prompt for sample in samples})[:5],
            "decoding": "greedy",
            "max_new_tokens": self.max_new_tokens(options),
            "batch_size": options.batch_size,
            "lineage": options.lineage,
        }
