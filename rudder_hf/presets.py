"""Settings for the models of the paper, each with its provenance.

The paper gives layer, alpha_max and k for three models. For the other two it evaluated but did not publish settings:
those presets are starting points derived from the published ones, and say so when they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .core.backbones import find_backbone, without_peft
from .core.configuration import RudderConfig
from .core.errors import logger
from .core.trust import is_hub_id

_PAPER = "RUDDER (ICML 2026), section 4.1: calibrated on 100 held-out MSCOCO images at >= 95 % of vanilla recall"
_FOR_LLAVA_13B = (
    "starting point: the relative depth of LLaVA-1.5-7B (30 of 32 layers) and its strength scaled with the square "
    "root of the hidden size; the paper evaluates this model but gives no settings"
)
_FOR_QWEN = (
    "starting point: InstructBLIP's early layer, because the paper finds early layers better for both, and its "
    "strength scaled with the square root of the hidden size; the paper gives no settings"
)
# The paper's results with its settings, greedy decoding: (vanilla, RUDDER-Beta).
_METRICS = ("CHAIR_S", "CHAIR_I", "POPE accuracy", "POPE F1", "MME")
_LLAVA = ((48.6, 39.5), (13.6, 10.5), (85.34, 86.53), (84.91, 86.03), (1745.87, 1724.17))
_IDEFICS2 = ((46.6, 28.4), (14.9, 10.9), (78.40, 78.74), (74.86, 76.52), (1518.84, 1540.56))
_INSTRUCTBLIP = ((39.2, 27.1), (12.8, 8.5), (85.74, 86.02), (84.75, 84.93), (1566.77, 1592.07))


@dataclass(frozen=True)
class Preset:
    """Settings for one base model; see [`RudderConfig`] for their meaning."""

    name: str  # what users type
    base_model: str  # the model's id on the Hub
    layer: int
    alpha_max: float
    k: float
    source: str  # where the settings come from
    results: tuple[tuple[float, float], ...] = ()  # the paper's, if the settings are

    @property
    def calibrated(self) -> bool:
        """Whether the settings were tuned on this very model."""
        return self.source == _PAPER

    @property
    def reported(self) -> dict[str, tuple[float, float]]:
        """The paper's results with these settings: metric -> (vanilla, RUDDER-Beta)."""
        return dict(zip(_METRICS, self.results, strict=False))

    def config(self) -> RudderConfig:
        """The preset as a `RudderConfig`."""
        config = RudderConfig(
            base_model_name_or_path=self.base_model, layer=self.layer, alpha_max=self.alpha_max, k=self.k
        )
        if self.calibrated:
            model, settings = {"name": self.base_model}, config.settings()
            config.calibration = {"source": "paper", "detail": self.source, "model": model, "settings": settings}
        return config


# The paper's layer for LLaVA-1.5-7B is 30 of 32. `rudder calibrate` tries this share of the hidden state first.
_DEPTH = (30, 32)
_FIRST_STRENGTH = 0.1
PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", 30, 20.0, 5.0, _PAPER, _LLAVA),
        Preset("idefics2-8b", "HuggingFaceM4/idefics2-8b", 28, 8.0, 5.0, _PAPER, _IDEFICS2),
        Preset("instructblip-vicuna-7b", "Salesforce/instructblip-vicuna-7b", 1, 6.5, 8.0, _PAPER, _INSTRUCTBLIP),
        Preset("llava-1.5-13b", "llava-hf/llava-1.5-13b-hf", 37, 22.0, 5.0, _FOR_LLAVA_13B),
        Preset("qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct", 1, 6.0, 8.0, _FOR_QWEN),
    )
}
_BY_BASE = {preset.base_model: preset for preset in PRESETS.values()}


def list_presets() -> list[str]:
    """Names of the presets, as accepted by `get_preset`."""
    return list(PRESETS)


def get_preset(name: str) -> Preset:
    """Find a preset by its name or by the Hub id of its base model.

    Raises:
        ValueError: There is no such preset; the message lists those there are.
    """
    if preset := PRESETS.get(name) or _BY_BASE.get(name):
        return preset
    known = ", ".join(f"{preset.name} ({preset.base_model})" for preset in PRESETS.values())
    raise ValueError(
        f"There is no preset for {name!r}. Presets: {known}. "
        "For another model pass RudderConfig(layer=..., alpha_max=..., k=...)."
    )


def settings_for(base: nn.Module | str, name: str | None, given: Mapping[str, Any]) -> RudderConfig:
    """Return the settings of the preset of that name, or of a base model: loaded, or its Hub id or folder.

    For a base without preset these are the defaults, if `given` holds what differs from model to model.

    Raises:
        ValueError: There is no such preset, or the base has none; the message says how to find settings.
    """
    base_name = (
        base if isinstance(base, str) else getattr(getattr(without_peft(base), "config", None), "name_or_path", "")
    )
    found = get_preset(name) if name is not None else _BY_BASE.get(base_name)
    if found is not None:
        if not found.calibrated:
            logger.warning(f"RUDDER settings for {found.name} are not calibrated: {found.source}.")
        return found.config()
    settings = RudderConfig()
    settings.override(given)  # A misspelled setting is named first.
    if {"layer", "alpha_max"} <= set(given):
        return settings
    shown = base_name or type(base).__name__
    search = f"`rudder search {shown}` lists settings on the Hub, " if is_hub_id(base_name) else ""
    raise ValueError(
        f"RUDDER needs settings, and there is no preset for {shown!r}. Presets: {', '.join(PRESETS)}. {search}"
        f"`rudder calibrate --model {shown}` finds new ones; or pass layer=..., alpha_max=... .{_starting_point(base)}"
    )


def _starting_point(base: nn.Module | str) -> str:
    """Say which settings to try first on a model without preset."""
    stored = RudderConfig.get_config_dict(base)[0] if isinstance(base, str) else {}
    depth = (stored.get("text_config") or stored).get("num_hidden_layers")
    depth = depth if isinstance(base, str) else len(find_backbone(base).layers)
    if not isinstance(depth, int):
        return ""
    return (
        f" A starting point is layer={depth * _DEPTH[0] // _DEPTH[1]} ({_DEPTH[0]}/{_DEPTH[1]} of the depth) with "
        f"alpha_max at {_FIRST_STRENGTH} of the median length of the hidden states that enter this layer, as "
        "`rudder calibrate` tries first."
    )
