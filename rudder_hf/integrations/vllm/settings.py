"""Settings of an engine (`additional_config`) and of one request (`extra_args`, over HTTP `vllm_xargs`).

Nothing here needs vLLM. The names, ranges and messages are those of `RudderConfig`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ...core.call import CallSettings, resolve_settings
from ...core.configuration import CALL_SETTINGS, STEERING_ROWS, RudderConfig, check_setting
from ...hub.loading import read_settings

KEY = "rudder"
PREFIX = "rudder_"

# Of the engine alone: the pooled sums of the prefix cache are made once for all requests.
ENGINE_ONLY = ("layer", "pool", "span")
REQUEST_SETTINGS = (*(name for name in CALL_SETTINGS if name not in ENGINE_ONLY), "force")
_FLAGS = ("steer_first_token", "force")
# What `additional_config` may hold beside settings of RUDDER.
_SOURCE = ("settings", "revision", "steer_by_default", "other_base")


@dataclass(frozen=True)
class EngineSettings:
    """What an engine steers with.

    Attributes:
        config: RUDDER's settings; its layer may be negative.
        steer_by_default: Whether a request that says nothing of RUDDER is steered.
        other_base: Whether the engine may serve another model than the one that the settings name.
    """

    config: RudderConfig
    steer_by_default: bool = True
    other_base: bool = False

    @cached_property
    def own(self) -> CallSettings:
        """What holds for a request that has no settings of its own, as most."""
        return resolve_settings(self.config, None, batch=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `engine_settings` makes the same settings."""
        values = {name: getattr(self.config, name) for name in ("layer", *CALL_SETTINGS)}
        return {**values, "steer_by_default": self.steer_by_default}


def engine_settings(given: Any) -> EngineSettings:
    """Settings of an engine from what `additional_config["rudder"]` holds.

    Args:
        given: The id or folder of RUDDER settings; or a dictionary of settings, in which `"settings"` (and
            `"revision"`) may name such a repository, whose values the others override, `"steer_by_default"` says
            whether requests that say nothing are steered, and `"other_base"` lets settings be used for another model
            than theirs.

    Raises:
        ValueError: A setting is unknown or out of range, or there is no layer.
    """
    if isinstance(given, str):
        given = {"settings": given}
    if not isinstance(given, Mapping):
        raise ValueError(
            f'additional_config["rudder"] is {given!r}, but has to be the id or folder of RUDDER settings, or a '
            'dictionary such as {"settings": "org/name"} or {"layer": 30, "alpha_max": 20.0, "k": 5.0}. Leave it out '
            "for an engine without RUDDER."
        )
    overrides = {name: check_setting(name, value) for name, value in given.items() if name not in _SOURCE}
    by_default, other_base = given.get("steer_by_default", True), given.get("other_base", False)
    for name, value in (("steer_by_default", by_default), ("other_base", other_base)):
        if not isinstance(value, bool):
            raise ValueError(f'"{name}" is {value!r}, but has to be true or false.')
    if given.get("settings") is not None:
        config = _stored_settings(given["settings"], given.get("revision"))
        config.take(overrides)
    elif "layer" in overrides:
        config = RudderConfig(**overrides)
    else:
        raise ValueError(
            "RUDDER needs the layer to steer: give the id or folder of RUDDER settings as "
            'additional_config={"rudder": "org/name"}, or at least {"rudder": {"layer": 30}}.'
        )
    _refuse_contrast(config.contrast)
    return EngineSettings(config, by_default, other_base)


def check_keys(given: Iterable[str], where: str) -> None:
    """Refuse a key that is almost RUDDER's, which vLLM would pass over in silence.

    Raises:
        ValueError: There is one (`ruder`, `RUDDER`, `rudder-alpha_max`).
    """
    for name in given:
        if name == KEY or name.startswith(PREFIX):
            continue
        word = re.split(r"[^A-Za-z]", name)[0]
        if difflib.get_close_matches(word.lower(), [KEY], cutoff=0.75) or name.startswith(KEY):
            flat = ", ".join(repr(PREFIX + setting) for setting in REQUEST_SETTINGS)
            raise ValueError(
                f"{name!r} in {where} is not understood. RUDDER takes {KEY!r}, and of a request also {flat}."
            )


def check_base(settings: EngineSettings, served: str) -> None:
    """Refuse settings that were found for another model than the one that is served.

    A folder is taken for the model if it is the one that the settings name, bears the name of its repository, or is
    its place in the cache of the Hub.

    Raises:
        ValueError: They are another's, and it was not said that they may be.
    """
    base = settings.config.base_model_name_or_path
    if base is None or settings.other_base:
        return
    name = base.rstrip("/").rpartition("/")[2]
    same = base == served or Path(base).resolve() == Path(served).resolve()
    if not (same or Path(served).name == name or f"models--{base.replace('/', '--')}" in Path(served).parts):
        raise ValueError(
            f"The RUDDER settings are for {base!r}, but the engine serves {served!r}. Serve the former or, if the "
            f'settings suit the latter as well, say so: {{"{KEY}": {{"settings": ..., "other_base": true}}}}.'
        )


def longest_push(model: Any) -> float:
    """The largest `alpha_max` that the dtype of a served model (vLLM's config of it) has room for."""
    # The push is added before the layer applies its factor.
    factor = float(getattr(model.hf_text_config, "residual_multiplier", 1.0))
    return torch.finfo(model.dtype).max * factor


def check_strength(settings: CallSettings, longest: float) -> None:
    """Refuse a push that a half-precision model cannot hold, and that would end in tokens made of NaN.

    Raises:
        ValueError: `alpha_max` is larger than `longest`.
    """
    if (strength := settings.rows["alpha_max"][0]) > longest:
        raise ValueError(
            f"RUDDER setting `alpha_max` is {strength:g}, but the served model's dtype has room for a push up to "
            f"{longest:g}: choose less, or start the engine with --dtype bfloat16."
        )


def _refuse_contrast(strength: float) -> None:
    """Raise for settings with a contrast of image values."""
    if strength != 0:
        raise ValueError(
            f"RUDDER setting `contrast` is {strength!r}, but vLLM shares cached blocks between requests, so that the "
            "values of an image cannot be edited for one of them. Set contrast to 0, or use transformers."
        )


def _stored_settings(repository: Any, revision: str | None) -> RudderConfig:
    """The settings that a folder or repository holds; the base that they name is not loaded."""
    if not isinstance(repository, str):
        raise ValueError(f'"settings" is {repository!r}, but has to be the id or folder of RUDDER settings.')
    try:
        config = read_settings(repository, **({} if revision is None else {"revision": revision}))
    except OSError as error:
        raise ValueError(f"The RUDDER settings {repository!r} cannot be read: {error}") from error
    if config is None:
        raise ValueError(f"{repository!r} holds a model, not RUDDER settings.")
    return config


def request_settings(engine: EngineSettings, extra_args: Mapping[str, Any] | None) -> CallSettings | None:
    """Settings of a request, None if it is not to be steered.

    Args:
        engine: The engine's settings.
        extra_args: Of the request. `"rudder"` is False (unsteered), True, or a dictionary of settings; over HTTP,
            where values are flat, `"rudder"` is 0 or 1 and settings stand beside it as `"rudder_alpha_max"`, ....

    Raises:
        ValueError: A setting is unknown, out of range, or one that a request cannot change.
    """
    if not extra_args:
        return engine.own if engine.steer_by_default else None
    check_keys(extra_args, "the request")
    ours = {name: value for name, value in extra_args.items() if name.startswith(KEY)}
    asked = ours.pop(KEY, bool(ours) or engine.steer_by_default)
    overrides = {name.removeprefix(PREFIX): value for name, value in ours.items()}
    if isinstance(asked, Mapping):
        overrides |= asked
        asked = True
    steered = _flag(asked, KEY, "true, false or a dictionary of settings")
    settings = engine.own
    if overrides:
        checked = {name: _value(engine, name, value) for name, value in overrides.items()}
        settings = resolve_settings(engine.config, checked, batch=1)
    return settings if steered else None


def decide(
    engine: EngineSettings, extra_args: Mapping[str, Any] | None, features: Iterable[Any]
) -> tuple[str, CallSettings | None]:
    """What becomes of a request with these multimodal features, and its settings if it is steered.

    Steered is what has an image or a video, or comes by force: `metrics.OUTCOMES` has the words.
    """
    settings = request_settings(engine, extra_args)
    if settings is None:
        return "unsteered", None
    if settings.force or any(feature.modality in ("image", "video") for feature in features):
        return "steered", settings
    return "no_image", None


def operator_row(settings: CallSettings) -> tuple[float, ...]:
    """`alpha_max`, `k`, `c`, `g_min`, `g_max`, `norm_cap` of one request as the operator takes them.

    Mode "add" is a gate that is always open; no cap is an infinite one.
    """
    row = {name: column[0] for name, column in settings.rows.items()}
    if settings.mode == "add":
        row["g_min"] = row["g_max"] = 1.0
    if row["norm_cap"] is None:
        row["norm_cap"] = math.inf
    return tuple(row[name] for name in STEERING_ROWS)


def _value(engine: EngineSettings, name: str, value: Any) -> Any:
    """One setting of a request, in the type that `resolve_settings` checks."""
    if name in ENGINE_ONLY:
        own = getattr(engine.config, name)
        if check_setting(name, value) != own:
            raise ValueError(
                f"RUDDER setting `{name}` is {own!r} for the whole engine and cannot be {value!r} for one request. "
                "Start another engine with it."
            )
        return value
    if name not in REQUEST_SETTINGS:
        raise ValueError(f"{name!r} is not a RUDDER setting of a request. Settings: {', '.join(REQUEST_SETTINGS)}.")
    if name == "contrast":
        _refuse_contrast(check_setting(name, value))
    return _flag(value, name) if name in _FLAGS else check_setting(name, value)


def _flag(value: Any, name: str, allowed: str = "true or false") -> bool:
    """A truth value; vLLM's HTTP server makes numbers of JSON's false and true."""
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise ValueError(f"RUDDER setting `{name}` is {value!r}, but has to be {allowed}.")
