"""Settings of an engine (`additional_config`) and of one request (`extra_args`, over HTTP `vllm_xargs`).

Nothing here needs vLLM. The names, ranges and messages are those of `RudderConfig`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.call import CallSettings, resolve_settings
from ...core.configuration import RudderConfig
from ...core.settings import CALL_SETTINGS, CONTRAST_DEFAULTS, check_setting
from ...hub.loading import read_settings
from ...runtime.environment import files_digest

KEY = "rudder"
PREFIX = "rudder_"

# Settings of the engine alone: the pooled sums of the prefix cache are made once for all requests.
ENGINE_ONLY = ("layer", "pool", "span")
ENGINE_SETTINGS = ("layer", *(name for name in CALL_SETTINGS if name not in CONTRAST_DEFAULTS))
REQUEST_SETTINGS = (*(name for name in ENGINE_SETTINGS if name not in ENGINE_ONLY), "force")
# What `additional_config` may hold beside settings of RUDDER. `resolved` is for the processes of the engine.
_SOURCE_KINDS = (
    ("settings", str, "the id or folder of RUDDER settings"),
    ("revision", str, "a revision of the settings' repository"),
    ("steer_by_default", bool, "true or false"),
    ("other_base", bool, "true or false"),
)
_SOURCE = (*(name for name, *_ in _SOURCE_KINDS), "resolved")
_NO_CONTRAST = (
    "vLLM shares cached blocks between requests, so that the values of an image cannot be edited for one of them. "
    "Leave the contrast settings out, or use transformers."
)


@dataclass(frozen=True)
class EngineSettings:
    """What an engine steers with."""

    config: RudderConfig  # its layer may be negative
    steer_by_default: bool = True  # whether a request that says nothing of RUDDER is steered
    other_base: bool = False  # whether the engine may serve another model than the one that the settings name
    repository: str = ""  # where the settings were read, empty if they were given one by one
    revision: str = ""  # the commit of the repository, empty for a folder
    known: dict[str, CallSettings | None] = field(default_factory=dict, compare=False)  # by what requests sent

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, from which `engine_settings` makes the same settings without reading files."""
        values = {name: getattr(self.config, name) for name in ENGINE_SETTINGS}
        return {**values, "steer_by_default": self.steer_by_default, "resolved": [self.repository, self.revision]}

    def __str__(self) -> str:
        values = ", ".join(f"{name}={getattr(self.config, name)!r}" for name in ENGINE_SETTINGS)
        return f"{values}; settings: {self.repository or 'given one by one'} {self.revision}".rstrip()


def engine_settings(given: Any) -> EngineSettings:
    """Make the settings of an engine from what `additional_config["rudder"]` holds.

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
    overrides = {name: value for name, value in given.items() if name not in _SOURCE}
    if unknown := [name for name in overrides if name not in ENGINE_SETTINGS and name not in CONTRAST_DEFAULTS]:
        raise ValueError(
            f"{', '.join(map(repr, unknown))} is not a RUDDER setting of an engine. Settings: "
            f"{', '.join((*ENGINE_SETTINGS, *_SOURCE[:-1]))}."
        )
    for name, kind, allowed in _SOURCE_KINDS:
        if given.get(name) is not None and not isinstance(given[name], kind):
            raise ValueError(f'"{name}" is {given[name]!r}, but has to be {allowed}.')
    repository, revision = given.get("resolved") or ("", "")
    if given.get("settings") is not None:
        repository, revision = given["settings"], given.get("revision") or ""
        try:
            stored = read_settings(repository, **({"revision": revision} if revision else {}))
        except OSError as error:
            raise ValueError(f"The RUDDER settings {repository!r} cannot be read: {error}") from error
        if stored is None:
            raise ValueError(f"{repository!r} holds a model, not RUDDER settings.")
        config, revision = stored, getattr(stored, "_commit_hash", None) or revision
        config.override(overrides)
    elif "layer" in overrides:
        config = RudderConfig(**overrides)
    else:
        raise ValueError(
            "RUDDER needs the layer to steer: give the id or folder of RUDDER settings as "
            'additional_config={"rudder": "org/name"}, or at least {"rudder": {"layer": 30}}.'
        )
    for name, value in {"contrast": config.contrast, **overrides}.items():
        if name in CONTRAST_DEFAULTS and value != CONTRAST_DEFAULTS[name]:
            raise ValueError(f"RUDDER setting `{name}` is {value!r}, but {_NO_CONTRAST}")
    return EngineSettings(
        config, given.get("steer_by_default", True), given.get("other_base", False), repository, revision
    )


def check_keys(given: Iterable[str], of_engine: bool = False) -> None:
    """Refuse keys that are almost RUDDER's, which vLLM would ignore in silence.

    Raises:
        ValueError: There is one: `ruder`, `RUDDER`, `rudder-alpha_max`, for a request `alpha_max` without its prefix,
            and for an engine `rudder_layer`.
    """
    flat = ", ".join(repr(PREFIX + setting) for setting in REQUEST_SETTINGS)
    for name in given:
        if not of_engine and name in (*REQUEST_SETTINGS, *ENGINE_ONLY, *CONTRAST_DEFAULTS):
            raise ValueError(f"{name!r} has no effect: RUDDER takes {PREFIX + name!r}. A request may have {flat}.")
        if name == KEY or (name.startswith(PREFIX) and not of_engine):
            continue
        word = re.split(r"[^a-z]", name.lower())[0]
        if difflib.get_close_matches(word, [KEY], cutoff=0.75) or name.startswith(KEY):
            raise ValueError(
                f'{name!r} in additional_config is not understood. RUDDER takes {{"{KEY}": {{"layer": 30, ...}}}} or '
                f'{{"{KEY}": "org/name"}}.'
                if of_engine
                else f"{name!r} in the request is not understood. RUDDER takes {KEY!r} and {flat}."
            )


def check_base(settings: EngineSettings, served: str) -> None:
    """Refuse settings that were found for another model than the one that is served.

    A folder is taken for the model if it is the one that the settings name, has the name of its repository, or is
    its place in the cache of the Hub.

    Raises:
        ValueError: They are another's, and `other_base` is not set.
    """
    base = settings.config.base_model_name_or_path
    if base is None or settings.other_base or Path(base).resolve() == Path(served).resolve():
        return
    name = base.rstrip("/").rpartition("/")[2]
    if not (Path(served).name == name or f"models--{base.replace('/', '--')}" in Path(served).parts):
        raise ValueError(
            f"The RUDDER settings are for {base!r}, but the engine serves {served!r}. Serve the former or, if the "
            f'settings suit the latter as well, say so: {{"{KEY}": {{"settings": ..., "other_base": true}}}}.'
        )


def other_files(config: RudderConfig, served: str, commit: str | None) -> str:
    """Return a warning if the served files are not those that the settings were found with; empty if unknown.

    Args:
        config: The settings, which may record the commit of their base or a digest of its files.
        served: Folder or id of the served model.
        commit: The commit that vLLM loads, if the model comes from the Hub.
    """
    recorded = config.base_model_revision or ((config.calibration or {}).get("model") or {}).get("revision")
    folder = Path(served)
    if str(recorded).startswith("files-sha256:"):
        found = files_digest(folder) if folder.is_dir() else None
    else:
        found = folder.name if folder.parent.name == "snapshots" else commit
    if recorded in (None, "unknown") or found in (None, recorded):
        return ""
    return (
        f"The RUDDER settings were found with {config.base_model_name_or_path} at {recorded}, but {served} is at "
        f"{found}: compare some answers with those of plain transformers before you trust it."
    )


def request_settings(engine: EngineSettings, extra_args: Mapping[str, Any] | None) -> CallSettings | None:
    """Return the settings of a request, None if it is not to be steered. Equal requests are parsed once.

    Args:
        engine: The engine's settings.
        extra_args: Of the request. `"rudder"` is False (unsteered), True, or a dictionary of settings; over HTTP,
            where values are flat, `"rudder"` is 0 or 1 and settings stand beside it as `"rudder_alpha_max"`, ....

    Raises:
        ValueError: A setting is unknown, out of range, or one that a request cannot change.
    """
    sent = json.dumps(extra_args or {}, sort_keys=True, default=repr)
    if sent not in engine.known:
        if len(engine.known) >= 1024:
            engine.known.clear()
        engine.known[sent] = _parse(engine, extra_args or {})
    return engine.known[sent]


def _parse(engine: EngineSettings, extra_args: Mapping[str, Any]) -> CallSettings | None:
    check_keys(extra_args)
    ours = {name: value for name, value in extra_args.items() if name.startswith(KEY)}
    asked = ours.pop(KEY, bool(ours) or engine.steer_by_default)
    overrides = {name.removeprefix(PREFIX): value for name, value in ours.items()}
    if isinstance(asked, Mapping):
        overrides |= asked
        asked = True
    steered = _flag(asked, KEY, "true, false or a dictionary of settings")
    checked = {name: _value(engine, name, value) for name, value in overrides.items()}
    settings = resolve_settings(engine.config, checked, batch=1)
    return settings if steered else None


def decide(
    engine: EngineSettings, extra_args: Mapping[str, Any] | None, features: Iterable[Any]
) -> tuple[str, CallSettings | None]:
    """Return what becomes of a request with these multimodal features, and its settings if it is steered.

    Requests with an image or a video are steered, others by force: `metrics.OUTCOMES` has the words.
    """
    settings = request_settings(engine, extra_args)
    if settings is None:
        return "unsteered", None
    if settings.force or any(feature.modality in ("image", "video") for feature in features):
        return "steered", settings
    return "no_image", None


def _value(engine: EngineSettings, name: str, value: Any) -> Any:
    """Check what only vLLM refuses, and read flags; `resolve_settings` checks the rest."""
    if name in CONTRAST_DEFAULTS:
        raise ValueError(f"RUDDER setting `{name}` is {value!r}, but {_NO_CONTRAST}")
    if name in ENGINE_ONLY:
        own = getattr(engine.config, name)
        if check_setting(name, value) != own:
            raise ValueError(
                f"RUDDER setting `{name}` is {own!r} for the whole engine and cannot be {value!r} for one request. "
                "Start another engine with it."
            )
    elif name not in REQUEST_SETTINGS:
        raise ValueError(f"{name!r} is not a RUDDER setting of a request. Settings: {', '.join(REQUEST_SETTINGS)}.")
    elif isinstance(value, list | tuple):
        # `resolve_settings` would take it for the rows of a batch.
        return check_setting(name, value)
    return _flag(value, name) if name in ("steer_first_token", "force") else value


def _flag(value: Any, name: str, allowed: str = "true or false") -> bool:
    """Return a truth value; vLLM's HTTP server makes numbers of JSON's false and true."""
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise ValueError(f"RUDDER setting `{name}` is {value!r}, but has to be {allowed}.")
