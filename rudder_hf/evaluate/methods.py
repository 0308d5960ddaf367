"""The methods of a run: by name, with RUDDER's settings of the model and what the user set on top."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import methods as interventions
from ..methods import Intervention
from ..runtime.models import Subject

DEFAULT = ("vanilla", "rudder-beta", "rudder-add")
_RUDDER = ("rudder-beta", "rudder-add")
_CONTROLS = tuple(name for name in interventions.NAMES if name.startswith("rudder-") and name not in _RUDDER)
GROUPS: dict[str, tuple[str, ...]] = {
    "all": interventions.NAMES,
    "rudder": _RUDDER,
    "peers": tuple(name for name in interventions.NAMES if name not in ("vanilla", *_RUDDER, *_CONTROLS)),
    "controls": _CONTROLS,
}
"""Names that stand for several methods. Members that cannot run are left out, and it is said why."""


def parse_names(text: str) -> list[str]:
    """Names of methods and groups, separated by commas; groups are replaced by their members.

    Raises:
        ValueError: A name is unknown or given twice.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in given if name not in interventions.NAMES and name not in GROUPS]
    if unknown or not given:
        raise ValueError(
            f"There is no method {(unknown or [text])[0]!r}. Methods: {', '.join(interventions.NAMES)}. "
            f"Groups: {', '.join(GROUPS)}."
        )
    if len(set(given)) < len(given):
        raise ValueError(f"A method is named twice in {text!r}.")
    # A method that is named and also in a group keeps the place where it stands first.
    return list(dict.fromkeys(member for name in given for member in GROUPS.get(name, (name,))))


def parse_optional(text: str) -> set[str]:
    """The methods that only a group asks for: they are left out where they cannot run."""
    given = [name.strip() for name in text.split(",")]
    return {member for name in given for member in GROUPS.get(name, ())} - set(given)


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
            raise ValueError(f"{text!r} is no setting: write NAME=VALUE or METHOD.NAME=VALUE.")
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
        if name == "vti" and "directions" not in own:
            from .caption_pairs import scene_directions

            own["directions"] = scene_directions(subject)
        made.append(interventions.get(name, **own))
    return made


def make_possible(
    names: Sequence[str], optional: set[str], subject: Subject, settings: dict[str, dict[str, Any]], beams: int
) -> tuple[list[Intervention], list[str]]:
    """Make the methods, without those of a group that cannot run on this model or with this decoding.

    Returns:
        The methods, and for each one left out its name and the reason.

    Raises:
        ValueError: A method that was named cannot run, or none is left.
    """
    made: list[Intervention] = []
    left_out: list[str] = []
    unused = sorted(set(settings) - {"", *names})
    if unused:
        raise ValueError(f"There are settings for {unused[0]!r}, which is not one of the methods {', '.join(names)}.")
    for name in names:
        own = {key: value for key, value in settings.items() if key in ("", name)}
        try:
            method = make_methods([name], subject, own)[0]
            if reason := method.refuses(beams):
                raise ValueError(f"{reason}: choose another --decoding, or leave it out of --methods.")
        except ValueError as error:
            if name not in optional:
                raise
            left_out.append(f"{name} is left out: {error}")
        else:
            made.append(method)
    if not made:
        raise ValueError(f"None of the methods can run. {left_out[0]}")
    return made, left_out


def settings_record(method: Intervention) -> dict[str, Any]:
    """A method's settings as JSON values, and whether RUDDER's were calibrated for the model."""
    record = dict(method.settings())
    config = getattr(method, "config", None)
    if config is not None:
        record["calibrated"] = config.calibration is not None
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]
