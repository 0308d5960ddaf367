"""The methods of a run: by name, with RUDDER's settings of the model and what the user set on top."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import interventions
from ..interventions import Intervention
from .subject import Subject

DEFAULT = ("vanilla", "rudder-beta", "rudder-add")


def parse_names(text: str) -> list[str]:
    """Names of methods, separated by commas.

    Raises:
        ValueError: A name is unknown or given twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in interventions.NAMES]
    if unknown or not names:
        raise ValueError(f"There is no method {(unknown or [text])[0]!r}. Methods: {', '.join(interventions.NAMES)}.")
    if len(set(names)) < len(names):
        raise ValueError(f"A method is named twice in {text!r}.")
    return names


def parse_settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings such as "alpha_max=8" (for all methods that are steered) or "rudder-add.alpha_max=5", by method.

    Raises:
        ValueError: A text has another form.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, dot, setting = name.strip().rpartition(".")
        if not equals or not setting or (dot and method not in interventions.NAMES):
            raise ValueError(f"{text!r} is no setting: write NAME=VALUE or METHOD.NAME=VALUE, e.g. rudder-add.alpha_max=5.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value.strip()
        found.setdefault(method, {})[setting] = parsed
    return found


def make_methods(
    names: Sequence[str], subject: Subject, settings: dict[str, dict[str, Any]] | None = None
) -> list[Intervention]:
    """Make the methods for a model.

    Raises:
        ValueError: Settings are missing, unknown or out of range, or belong to no method of the run.
    """
    settings = settings or {}
    unused = sorted(set(settings) - {"", *names})
    if unused:
        raise ValueError(f"There are settings for {unused[0]!r}, which is not one of the methods {', '.join(names)}.")
    made = []
    for name in names:
        own = dict(settings.get(name, {}))
        if name.startswith("rudder"):
            own = {**settings.get("", {}), **own}
            config = subject.settings_for(name)
            if config is None and not {"layer", "alpha_max"} <= set(own):
                raise ValueError(
                    f"There are no RUDDER settings for {subject.name!r}, which {name} needs: pass --rudder FOLDER, "
                    "or --set layer=... --set alpha_max=... (or --methods vanilla)."
                )
            own = {"config": config, **own}
        made.append(interventions.get(name, **own))
    return made


def settings_record(method: Intervention) -> dict[str, Any]:
    """A method's settings as JSON values, and whether RUDDER's were calibrated for the model."""
    record = dict(method.settings())
    config = getattr(method, "config", None)
    if config is not None:
        record["calibrated"] = config.calibration is not None
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]
