"""`CalibrationOptions`: what is tried, what is minimised, and what a setting must not break."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..metrics.errors import InputError
from .choice import BOOTSTRAP
from .scoring import OBJECTIVES, Limits
from .settings import Grid


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate.

    Attributes:
        grid: What is tried at each layer.
        layers: Layers to try; None takes a short list.
        shortlist: Length of that list.
        probe: Number of images for the sweep over all layers that the list comes from; 0 uses statistics alone.
        objective: "chair_s", "chair_i", "mean" of both, or "grounding", which needs no labels.
        limits: What a setting must not break.
        lineage: How CHAIR finds objects.
        max_new_tokens: Longest answer; None is the task's own.
        early_stopping: Whether settings without a chance are dropped on the way.
        label_free: Whether to compute the criterion without labels beside the labelled one.
        runners_up: How many settings that come next are checked on the held-out images too.
        batch_size: Largest batch, images times settings.
        bootstrap: Number of draws.
        confidence: In which share of the bootstrap draws a setting has to keep the limits to be chosen.
        seed: Of the bootstrap.
    """

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None
    shortlist: int = 3
    probe: int = 40
    objective: str = "mean"
    limits: Limits = field(default_factory=Limits)
    lineage: str = "pattern"
    max_new_tokens: int | None = None
    early_stopping: bool = True
    label_free: bool = False
    runners_up: int = 2
    batch_size: int = 256
    bootstrap: int = BOOTSTRAP
    confidence: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}; give a share from 0 to below 1, such as 0.8")
        for names, least in (("probe", "runners_up"), 0), (("shortlist", "batch_size", "bootstrap"), 1):
            for name in names:
                if getattr(self, name) < least:
                    raise InputError(f"{name} is {getattr(self, name)}; give at least {least}")
