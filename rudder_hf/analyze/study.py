"""What is analyzed: a model, images, RUDDER's settings, and which parts of the analysis are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..core.configuration import CALL_SETTINGS, RudderConfig
from ..evaluate.run import batches, encode_samples
from ..evaluate.tasks import Sample, Task
from ..evaluate.tasks.base import samples_hash
from ..metrics.chair_parsers import Lineage
from ..metrics.errors import InputError
from ..runtime.models import LoadedModel

PARTS = ("layers", "geometry", "tokens", "detector", "ablations")


@dataclass(frozen=True)
class AnalysisOptions:
    """How to analyze.

    Attributes:
        parts: Of `PARTS`.
        max_new_tokens: Longest answer; None is the task's own.
        batch_size: Images per batch.
        lineage: How mentions are found.
        seed: Of every random step.
        draws: Of bootstraps.
        shown: How many images the report shows token by token.
        token_image: Id of the image for the figure of the token view; None is the first whose unsteered answer names
            an absent object.
        command: For the record.
    """

    parts: tuple[str, ...] = PARTS
    max_new_tokens: int | None = None
    batch_size: int = 8
    lineage: Lineage = "pattern"
    seed: int = 0
    draws: int = 2000
    shown: int = 8
    token_image: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ValueError(f"There is no part {(unknown or [''])[0]!r}: choose from {', '.join(PARTS)}.")


@dataclass(frozen=True)
class Study:
    """A model, the images that it is asked about, and RUDDER's settings.

    Attributes:
        loaded: The stock model and its processor.
        task: The images.
        config: RUDDER's settings.
    """

    loaded: LoadedModel
    task: Task
    config: RudderConfig

    def __post_init__(self) -> None:
        if not self.config.alpha_max > 0:
            raise InputError("alpha_max is 0: there is nothing to analyze without a push")

    def batches(self, size: int) -> list[list[Sample]]:
        """The samples, `size` at a time."""
        return batches(self.task.samples, size)

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Inputs of `generate` for a batch of samples."""
        return encode_samples(self.loaded, self.task, samples)

    def record(self, options: AnalysisOptions) -> dict[str, Any]:
        """Everything that the numbers depend on, as JSON values."""
        samples = self.task.samples
        return {
            "version": __version__,
            "model": self.loaded.record(),
            "settings": {name: getattr(self.config, name) for name in ("layer", *CALL_SETTINGS)},
            "data": {"task": self.task.name, **self.task.data, "notes": self.task.notes},
            "images": len(samples),
            "image_ids": [sample.image_id for sample in samples],
            "samples": samples_hash(samples),
            "prompts": sorted({sample.prompt for sample in samples})[:5],
            "decoding": "greedy",
            "max_new_tokens": options.max_new_tokens or self.task.max_new_tokens,
            "batch_size": options.batch_size,
            "lineage": options.lineage,
        }
