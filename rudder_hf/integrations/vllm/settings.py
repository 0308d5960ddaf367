"""Settings of an engine (`additional_config`) and of one request (`extra_args`, over HTTP `vllm_xargs`).

Nothing here needs vLLM. The names, ranges and messages are those of `RudderConfig`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.configuration import CALL_SETTINGS, ROW_SETTINGS, RudderConfig, check_setting, check_settings

KEY = "rudder"
PREFIX = "rudder_"

# Of the engine alone: the pooled sums of the prefix cache are made once for all requests.
ENGINE_ONLY = ("layer", "pool", "span")
REQUEST_SETTINGS = tuple(name for name in CALL_SETTINGS if name not in ENGINE_ONLY)
_FLAGS = ("steer_first_token", "force")
# What `additional_config` may hold beside settings of RUDDER.
_SOURCE = ("settings", "revision", "steer_by_default")


@dataclass(frozen=True)
class EngineSettings:
    """What an engine steers with.

    Attributes:
        values: `layer` and every setting of a call, checked.
        steer_by_default: Whether a request that says nothing of RUDDER is steered.
    """

    values: dict[str, Any]
    steer_by_default: bool = True

    @property
    def layer(self) -> int:
        """The target layer as it was given, perhaps negative."""
        return int(self.values["layer"])

    @property
    def pool(self) -> str:
        """How updates are pooled."""
        return str(self.values["pool"])

    @property
    def span(self) -> str:
        """Which prompt tokens are pooled."""
        return str(self.values["span"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `engine_settings` makes the same settings."""
        return {**self.values, "steer_by_default": self.steer_by_default}

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
    source = {name: given[name] for name in _SOURCE if name in given}
    overrides = {name: value for name, value in given.items() if name not in _SOURCE}
    for name in overrides:
        # Names the setting that is not known.
        check_setting(name, overrides[name])
    by_default = source.get("steer_by_default", True)
    if not isinstance(by_default, bool):
        raise ValueError(f'"steer_by_default" is {by_default!r}, but has to be true or false.')
    repository = source.get("settings")
    if repository is None:
        if "layer" not in overrides:
            raise ValueError(
                "RUDDER needs the layer to steer: give the id or folder of RUDDER settings as "
                'additional_config={"rudder": "org/name"}, or at least {"rudder": {"layer": 30}}.'
            )
        config = RudderConfig(**overrides)
    else:
        if not isinstance(repository, str):
            raise ValueError(f'"settings" is {repository!r}, but has to be the id or folder of RUDDER settings.')
        revision = {"revision": source["revision"]} if source.get("revision") is not None else {}
        try:
            config = RudderConfig.from_pretrained(repository, **revision)
        except OSError as error:
            raise ValueError(f"The RUDDER settings {repository!r} cannot be read: {error}") from error
        config.take(overrides)
    return EngineSettings({name: getattr(config, name) for name in ("layer", *CALL_SETTINGS)}, by_default)


@dataclass(frozen=True)
class RequestSettings:
    """What one request is steered with.

    Attributes:
        values: Every setting of a call, checked.
        force: Whether it is steered without an image too.
    """

    values: dict[str, Any]
    force: bool = False

    @property
    def steer_first_token(self) -> bool:
        """Whether the last prompt position is steered."""
        return bool(self.values["steer_first_token"])

    def row(self) -> tuple[float, float, float, float, float, float]:
        """`alpha_max`, `k`, `c`, `g_min`, `g_max`, `norm_cap` as the operator takes them.

        Mode "add" is a gate that is always open; no cap is an infinite one.
        """
        alpha_max, k, c, g_min, g_max, cap = (self.values[name] for name in ROW_SETTINGS)
        if self.values["mode"] == "add":
            g_min = g_max = 1.0
        return alpha_max, k, c, g_min, g_max, math.inf if cap is None else cap


def request_settings(engine: EngineSettings, extra_args: Mapping[str, Any] | None) -> RequestSettings | None:
    """Settings of a request, None if it is not to be steered.

    Args:
        engine: The engine's settings.
        extra_args: Of the request. `"rudder"` is False (unsteered), True, or a dictionary of settings; over HTTP,
            where values are flat, `"rudder"` is 0 or 1 and settings stand beside it as `"rudder_alpha_max"`, ....

    Raises:
        ValueError: A setting is unknown, out of range, or one that a request cannot change.
    """
    ours = {name: value for name, value in (extra_args or {}).items() if name.startswith(KEY)}
    if not ours:
        return RequestSettings(dict(engine.values)) if engine.steer_by_default else None
    asked = ours.pop(KEY, True)
    if unknown := [name for name in ours if not name.startswith(PREFIX)]:
        raise ValueError(f"{unknown[0]!r} is not understood. RUDDER takes {KEY!r} and {_flat_names()}.")
    overrides = {name.removeprefix(PREFIX): value for name, value in ours.items()}
    if isinstance(asked, Mapping):
        overrides |= asked
        asked = True
    steered = _flag(asked, KEY, "true, false or a dictionary of settings")
    values = dict(engine.values)
    force = False
    for name, value in overrides.items():
        if name == "force":
            force = _flag(value, name)
        else:
            values[name] = _value(engine, name, value)
    check_settings(values)
    return RequestSettings(values, force) if steered else None


def has_picture(features: Iterable[Any]) -> bool:
    """Whether a picture or a video is among a request's multimodal features."""
    return any(feature.modality in ("image", "video") for feature in features)


def _value(engine: EngineSettings, name: str, value: Any) -> Any:
    """One setting of a request, checked."""
    if name in ENGINE_ONLY:
        if check_setting(name, value) != engine.values[name]:
            raise ValueError(
                f"RUDDER setting `{name}` is {engine.values[name]!r} for the whole engine and cannot be {value!r} for "
                "one request. Start another engine with it."
            )
        return value
    if name not in REQUEST_SETTINGS:
        raise ValueError(
            f"{name!r} is not a RUDDER setting of a request. Settings: {', '.join(REQUEST_SETTINGS)}, force."
        )
    if name in _FLAGS:
        return _flag(value, name)
    return check_setting(name, value)


def _flag(value: Any, name: str, allowed: str = "true or false") -> bool:
    """A truth value; vLLM's HTTP server makes numbers of JSON's false and true."""
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise ValueError(f"RUDDER setting `{name}` is {value!r}, but has to be {allowed}.")


def _flat_names() -> str:
    return ", ".join(repr(PREFIX + name) for name in (*REQUEST_SETTINGS, "force"))
