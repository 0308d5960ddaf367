"""`Setting`: one point of the search, everything of a `RudderConfig` but the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..core.configuration import CALL_SETTINGS, RudderConfig, check_settings


@dataclass(frozen=True, order=True)
class Setting:
    """What one row of a calibration batch is steered with; the fields are those of `RudderConfig`.

    `Setting()` has strength 0: it is the unsteered model.
    """

    alpha_max: float = 0.0
    k: float = 5.0
    c: float = 1.0
    g_min: float = 0.05
    g_max: float = 1.0
    mode: str = "beta"
    pool: str = "mean"
    span: str = "prompt"
    norm_cap: float | None = None
    steer_first_token: bool = False

    def __post_init__(self) -> None:
        for name, value in check_settings({name: getattr(self, name) for name in CALL_SETTINGS}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any] | RudderConfig) -> Setting:
        """From a mapping or a config; the layer and everything else that is no setting of a call is left out."""
        if not isinstance(values, Mapping):
            values = {name: getattr(values, name) for name in CALL_SETTINGS}
        return cls(**{name: value for name, value in values.items() if name in CALL_SETTINGS})

    @property
    def reading(self) -> tuple[str, str]:
        """How the prompt is read: pool and span."""
        return self.pool, self.span

    def record(self) -> dict[str, Any]:
        """The setting as plain JSON values."""
        return asdict(self)

    def describe(self) -> str:
        """The setting in one line: strength and sensitivity, and what differs from the defaults."""
        if self.alpha_max == 0:
            return "vanilla"
        parts = [f"alpha_max {self.alpha_max:.4g}"]
        parts += [f"k {self.k:g}"] if self.mode == "beta" else []
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            parts += [] if value == field.default else [f"{field.name} {value}"]
        return ", ".join(parts)


VANILLA = Setting()


def row_tensors(settings: Sequence[Setting], device: torch.device) -> dict[str, Tensor]:
    """The arguments of `step_constants`, one entry per setting.

    Mode "add" is the gate that is always open, so that both modes can be rows of one batch.
    """
    rows = []
    for setting in settings:
        cap = torch.inf if setting.norm_cap is None else setting.norm_cap
        gate = (1.0, 1.0) if setting.mode == "add" else (setting.g_min, setting.g_max)
        alpha_max = min(setting.alpha_max, cap) if setting.mode == "add" else setting.alpha_max
        rows.append((alpha_max, setting.k, setting.c, *gate, cap))
    columns = torch.tensor(rows, dtype=torch.float32, device=device).T.contiguous()
    return dict(zip(("alpha_max", "k", "c", "g_min", "g_max", "norm_cap"), columns, strict=True))
