"""`attach`: steer a stock model's own `generate` in place. `detach`: take everything back out again."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from .backbones import without_peft
from .configuration import RudderConfig
from .generate import handle_of
from .handle import SteeringHandle
from .settings import MODEL_TYPE


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
        ValueError: The model cannot be steered or is already, a setting is not allowed, or there are none.
    """
    handle = SteeringHandle(model, as_config(config, settings, model))
    handle.install()
    return handle


def detach(model: nn.Module) -> None:
    """Remove RUDDER from a model whose handle is lost. Harmless if it is not steered."""
    if (handle := handle_of(without_peft(model))) is not None:
        handle.remove()


def as_config(config: Any, given: Mapping[str, Any], base: nn.Module | str) -> RudderConfig:
    """Return the settings for a base model (or its id or folder) from any form that `attach` takes them in.

    A RudderConfig is returned itself if no settings are `given` on top.
    """
    if isinstance(config, Mapping):
        config, given = None, {**config, **given}
    if getattr(config, "model_type", None) == MODEL_TYPE:
        settings: RudderConfig = copy.deepcopy(config) if given else config
    elif config is None or isinstance(config, str):
        presets = package_module("presets")
        if presets is None and (config is not None or not {"layer", "alpha_max"} <= set(given)):
            raise ValueError("Pass settings: layer=..., alpha_max=... (presets need `pip install rudder_hf`).")
        settings = RudderConfig() if presets is None else presets.settings_for(base, config, given)
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
