"""Settings of one `generate` call: the config's, with what the caller overrides, scalar or row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration import CALL_SETTINGS, ROW_SETTINGS, RudderConfig, check_setting, check_settings

Override = bool | Mapping[str, Any] | Sequence[Any] | RudderConfig | None


@dataclass(frozen=True)
class CallSettings:
    """Checked settings of one call.

    Attributes:
        rows: For each of `ROW_SETTINGS` one value per row of the batch.
        mode: "beta" or "add".
        pool: "mean" or "norm".
        span: "prompt", "text" or "image".
        steer_first_token: Whether the last prompt position is steered.
        force: Whether rows without an image are steered too.
    """

    rows: dict[str, list[Any]]
    mode: str
    pool: str
    span: str
    steer_first_token: bool
    force: bool

    def row_tensors(self, expand: int, steered: Sequence[bool], device: torch.device) -> dict[str, Tensor]:
        """The row settings as float32 tensors of `expand` rows per row of the batch (beams, return sequences).

        Rows that are not to be steered get strength 0; rows without a norm cap an infinite one.
        """
        columns = dict(self.rows)
        columns["alpha_max"] = [a if use else 0.0 for a, use in zip(columns["alpha_max"], steered, strict=True)]
        columns["norm_cap"] = [math.inf if cap is None else cap for cap in columns["norm_cap"]]
        return {
            name: torch.tensor(column, dtype=torch.float32, device=device).repeat_interleave(expand)
            for name, column in columns.items()
        }

    def record(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return {**self.rows, **{name: getattr(self, name) for name in CALL_SETTINGS if name not in self.rows}}


def resolve_settings(config: RudderConfig, override: Override, batch: int, layer: int | None = None) -> CallSettings:
    """Settings of a call on `batch` prompts, each checked once.

    Args:
        config: The model's settings.
        override: None or True for the config's; False for strength 0; a mapping of settings for this call, whose row
            settings may be sequences with one value per prompt; a `RudderConfig`; or a sequence with one entry per
            prompt, each None (the config's), False (unsteered) or a mapping of row settings.
        batch: Number of prompts, before beams and return sequences multiply them.
        layer: Index of the installed layer from 0 on, which the override may name too.

    Raises:
        ValueError: A setting is unknown, out of range or has the wrong number of rows.
        TypeError: `override` is none of the above.
    """
    values: dict[str, Any] = {name: getattr(config, name) for name in CALL_SETTINGS} | {"force": False}
    if isinstance(override, RudderConfig):
        override = override.settings()
    elif isinstance(override, Sequence) and not isinstance(override, str):
        override = _columns_from_rows(values, override, batch)
    elif override is None or isinstance(override, bool):
        override = {"alpha_max": 0.0} if override is False else {}
    if not isinstance(override, Mapping):
        raise TypeError(
            f"rudder={override!r} is not understood. Pass False (unsteered), a dictionary of settings for this call, "
            "or a list with one dictionary, None or False for each prompt."
        )
    values |= override
    if (asked := values.pop("layer", config.layer)) not in (config.layer, layer):
        raise ValueError(
            f"The layer cannot change within a call: {config.layer} is installed, {asked} was asked for. "
            "Set `model.config.layer` (or detach and attach again) between calls."
        )
    columns = {name: _column(name, values.pop(name), batch) for name in ROW_SETTINGS}
    rows = [check_settings({name: columns[name][row] for name in ROW_SETTINGS}) for row in range(batch)]
    of_all_rows = {name: check_setting(name, value) for name, value in values.items()}
    return CallSettings({name: [row[name] for row in rows] for name in ROW_SETTINGS}, **of_all_rows)


def _column(name: str, value: Any, batch: int) -> list[Any]:
    """One value per row, from a scalar or a sequence."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return [value] * batch
    if len(value) != batch:
        raise ValueError(
            f"RUDDER setting `{name}` has {len(value)} values for a batch of {batch} prompts: "
            "give one number, or one for each prompt."
        )
    return list(value)


def _columns_from_rows(defaults: Mapping[str, Any], rows: Sequence[Any], batch: int) -> dict[str, list[Any]]:
    """Turn one override per prompt into one column per setting."""
    if len(rows) != batch:
        raise ValueError(f"rudder= has {len(rows)} entries for a batch of {batch} prompts: give one for each prompt.")
    settings = [{"alpha_max": 0.0} if row is False else {} if row is None or row is True else row for row in rows]
    for index, row in enumerate(settings):
        if not isinstance(row, Mapping):
            raise TypeError(f"rudder[{index}]={row!r} is not understood: give None, False or a dictionary.")
        if unknown := set(row) - set(ROW_SETTINGS):
            raise ValueError(
                f"rudder[{index}] sets {sorted(unknown)}, but only {', '.join(ROW_SETTINGS)} can differ between rows."
            )
    return {name: [row.get(name, defaults[name]) for row in settings] for name in ROW_SETTINGS}
