"""Settings of an engine (`additional_config`) and of one request (`extra_args`, over HTTP `vllm_xargs`).

Nothing here needs vLLM. The names, ranges and messages are those of `RudderConfig`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.call import CallSettings, resolve_settings
from ...core.configuration import CALL_SETTINGS, ROW_SETTINGS, RudderConfig, check_setting
from ...hub.loading import read_settings

KEY = "rudder"
PREFIX = "rudder_"

# Of the engine alone: the pooled sums of the prefix cache are made once for all requests.
ENGINE_ONLY = ("layer", "pool", "span")
REQUEST_SETTINGS = (*(name for name in CALL_SETTINGS if name not in ENGINE_ONLY), "force")
_FLAGS = ("steer_first_token", "force")
# What `additional_config` may hold beside settings of RUDDER.
_SOURCE = ("settings", "revision", "steer_by_default")


@dataclass(frozen=True)
class EngineSettings:
    """What an engine steers with.

    Attributes:
        config: RUDDER's settings; its layer may be negative.
        steer_by_default: Whether a request that says nothing of RUDDER is steered.
    """

    config: RudderConfig
    steer_by_default: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `engine_settings` makes the same settings."""
        values = {name: getattr(self.config, name) for name in ("layer", *CALL_SETTINGS)}
        return {**values, "steer_by_default": self.steer_by_default}

    def to_name(self) -> str:
        """The settings as an identifier, see `from_name`."""
        return json.dumps(self.to_dict(), sort_keys=True).encode().hex()

    @classmethod
    def from_name(cls, name: str) -> EngineSettings:
        """The settings that `to_name` wrote.

        Raises:
            ValueError: It is no such name.
        """
        return engine_settings(json.loads(bytes.fromhex(name)))


def engine_settings(given: Any) -> EngineSettings:
    """Settings of an engine from what `additional_config["rudder"]` holds.

    Args:
        given: The id or folder of RUDDER settings; or a dictionary of settings, in which `"settings"` (and
            `"revision"`) may name such a repository, whose values the others override, and `"steer_by_default"`
            says whether requests that say nothing are steered.

    Raises:
        ValueError: A setting is unknown or out of range, or there is no layer.
    """
    if isinstance(given, str):
        given = {"settings": given}
    if not isinstance(given, Mapping):
        raise ValueError(
            f'additional_config["rudder"] is {given!r}, but has to be the id or folder of RUDDER settings, or a '
            'dictionary such as {"settings": "org/name"} or {"layer": 30, "alpha_max": 20.0, "k": 5.0}.'
        )
    overrides = {name: check_setting(name, value) for name, value in given.items() if name not in _SOURCE}
    by_default = given.get("steer_by_default", True)
    if not isinstance(by_default, bool):
        raise ValueError(f'"steer_by_default" is {by_default!r}, but has to be true or false.')
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
    return EngineSettings(config, by_default)


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
    ours = {name: value for name, value in (extra_args or {}).items() if name.startswith(KEY)}
    asked = ours.pop(KEY, True if ours else engine.steer_by_default)
    if unknown := [name for name in ours if not name.startswith(PREFIX)]:
        flat = ", ".join(repr(PREFIX + name) for name in REQUEST_SETTINGS)
        raise ValueError(f"{unknown[0]!r} is not understood. RUDDER takes {KEY!r} and {flat}.")
    overrides = {name.removeprefix(PREFIX): value for name, value in ours.items()}
    if isinstance(asked, Mapping):
        overrides |= asked
        asked = True
    steered = _flag(asked, KEY, "true, false or a dictionary of settings")
    checked = {name: _value(engine, name, value) for name, value in overrides.items()}
    settings = resolve_settings(engine.config, checked, batch=1)
    return settings if steered else None


def has_evidence(settings: CallSettings, features: Iterable[Any]) -> bool:
    """Whether a request with these multimodal features is steered: with an image or a video, or by force."""
    return settings.force or any(feature.modality in ("image", "video") for feature in features)


def operator_row(settings: CallSettings) -> tuple[float, ...]:
    """`alpha_max`, `k`, `c`, `g_min`, `g_max`, `norm_cap` of one request as the operator takes them.

    Mode "add" is a gate that is always open; no cap is an infinite one.
    """
    row = {name: column[0] for name, column in settings.rows.items()}
    if settings.mode == "add":
        row["g_min"] = row["g_max"] = 1.0
    if row["norm_cap"] is None:
        row["norm_cap"] = math.inf
    return tuple(row[name] for name in ROW_SETTINGS)


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
    return _flag(value, name) if name in _FLAGS else check_setting(name, value)


def _flag(value: Any, name: str, allowed: str = "true or false") -> bool:
    """A truth value; vLLM's HTTP server makes numbers of JSON's false and true."""
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise ValueError(f"RUDDER setting `{name}` is {value!r}, but has to be {allowed}.")
