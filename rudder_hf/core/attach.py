"""`attach`: steer a stock model's own `generate` in place. `detach`: take everything back out again."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from .backbones import find_backbone, without_peft
from .configuration import RudderConfig
from .errors import logger
from .generate import handle_of
from .handle import SteeringHandle
from .settings import MODEL_TYPE

# The paper's layer for LLaVA-1.5-7B is 30 of 32. `rudder calibrate` tries this share of the hidden state first.
_DEPTH = (30, 32)
_FIRST_STRENGTH = 0.1


def attach(
    model: nn.Module, config: RudderConfig | str | Mapping[str, Any] | None = None, **settings: Any
) -> SteeringHandle:
    """Steer a model's own `generate` in place, without a wrapper.

    ```python
    with attach(model, layer=30, alpha_max=20.0, k=5.0):
        model.generate(**inputs)          # steered; takes rudder= and output_rudder= too
    ```

    Args:
        model: A vision-language model, or a PEFT model around one.
        config: The settings: a `RudderConfig` (later changes of it take effect), the name of a preset, or a
            dictionary. None takes the preset of the model.
        **settings: Settings on top of these (`layer=4, alpha_max=70.0`), which are enough for a model without preset.

    Returns:
        A handle with `remove()`, which is also a context manager. `handle.config` can be changed between calls.

    Raises:
        UnsupportedModelError: The model cannot be steered, with the reason.
        ValueError: There are no settings, one is not allowed, the layer does not exist, or the model is steered.
    """
    handle = SteeringHandle(model, as_config(config, settings, model))
    handle.install()
    return handle


def detach(model: nn.Module) -> None:
    """Remove RUDDER from a model whose handle is lost. Harmless if it is not steered."""
    handle: SteeringHandle | None = handle_of(without_peft(model))
    if handle is not None:
        handle.remove()


def as_config(config: Any, given: Mapping[str, Any], base: nn.Module | str) -> RudderConfig:
    """Return the settings for a base model from any form that users give them in.

    Args:
        config: A RudderConfig, returned itself if `given` is empty; or a preset's name, a dictionary, or None.
        given: Settings by name, which go on top.
        base: The loaded model, or its Hub id or folder.

    Raises:
        ValueError: There are no settings, or one is not allowed.
        TypeError: `config` has another form.
    """
    if isinstance(config, Mapping):
        config, given = None, {**config, **given}
    if getattr(config, "model_type", None) == MODEL_TYPE:
        settings: RudderConfig = copy.deepcopy(config) if given else config
    elif config is None or isinstance(config, str):
        settings = _preset_config(config, given, base)
    else:
        raise TypeError(
            f"config is {config!r}, but has to be a RudderConfig, the name of a preset or a dictionary of settings."
        )
    if given:
        settings.override(given)
    return settings


def package_module(name: str) -> Any:
    """Import a module of rudder_hf; return None in the code of a settings repository, which stands alone."""
    return importlib.import_module(f"rudder_hf.{name}") if __name__.startswith("rudder_hf.") else None


def _preset_config(preset: str | None, given: Mapping[str, Any], base: nn.Module | str) -> RudderConfig:
    """Return a preset's settings; for a base without preset the defaults, if `given` holds what differs by model."""
    presets = package_module("presets")
    name = base if isinstance(base, str) else getattr(getattr(without_peft(base), "config", None), "name_or_path", "")
    known = {} if presets is None else presets.PRESETS
    found = next((each for each in known.values() if (preset or name) in (each.name, each.base_model)), None)
    if found is not None:
        if not found.calibrated:
            logger.warning(f"RUDDER settings for {found.name} are not calibrated: {found.source}.")
        return found.config()  # type: ignore[no-any-return]
    if preset is not None and presets is None:
        raise ValueError(f"{preset!r} names a preset, and presets need the package: pip install rudder_hf.")
    if preset is not None:
        presets.get_preset(preset)
    settings = RudderConfig()
    settings.override(given)  # A misspelled setting is named first.
    if {"layer", "alpha_max"} <= set(given):
        return settings
    names = f" Presets: {', '.join(known)}." if known else ""
    raise ValueError(
        f"RUDDER needs settings, and there is no preset for {name or type(base).__name__!r}.{names} "
        f"`rudder search {name or 'ID'}` lists settings on the Hub, `rudder calibrate --model {name or 'ID'}` finds "
        f"new ones; or pass layer=..., alpha_max=... .{_starting_point(base)}"
    )


def _starting_point(base: nn.Module | str) -> str:
    """Say which settings to try first on a model without preset."""
    if isinstance(base, str):
        stored, _ = RudderConfig.get_config_dict(base)
        text = stored.get("text_config")
        depth = (text if isinstance(text, Mapping) else stored).get("num_hidden_layers")
    else:
        depth = len(find_backbone(base).layers)
    if not isinstance(depth, int):
        return ""
    return (
        f" A starting point is layer={depth * _DEPTH[0] // _DEPTH[1]} ({_DEPTH[0]}/{_DEPTH[1]} of the depth) with "
        f"alpha_max at {_FIRST_STRENGTH} of the median length of the hidden states that enter this layer, the first "
        "strength that `rudder calibrate` tries."
    )
