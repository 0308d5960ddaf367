"""Plans of results folders in words: what a folder holds, and what differs where a command asks for something else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from .records import shortened

Command = Literal["evaluate", "calibrate", "compare", "analyze"]

_NOUNS: dict[Any, str] = {
    "evaluate": "an evaluation",
    "calibrate": "a calibration",
    "compare": "a comparison",
    "analyze": "an analysis",
}
# Values that say nothing to a reader.
_DIGEST = re.compile(r"(files-sha256:)?[0-9a-f]{16,64}")


def in_words(command: Any, plan: Any = None) -> str:
    """What the folder of a command and a plan, as they were read from it, holds: "an evaluation of MODEL"."""
    model = plan.get("model") if isinstance(plan, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return _NOUNS.get(command, f"results of rudder {command}") + (f" of {name}" if name else "")


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What differs between two plans, in words: as it is there, and as it is here."""
    words = {name: (_words(name, there), _words(name, here)) for name, there, here in _different(stored, asked)}
    if "model.name" in words:  # which says all that differs about the model
        words = {name: pair for name, pair in words.items() if name == "model.name" or not name.startswith("model.")}
    # What looks the same in words, such as digests and lists of ids, often follows from what does not.
    plain = {name: pair for name, pair in words.items() if pair[0] != pair[1]}
    if not plain:
        return [], [f"other {here}" for _, here in words.values()]
    return [there for name, (there, _) in plain.items() if name != "model.name"], [here for _, here in plain.values()]


def _different(
    stored: Mapping[str, Any], asked: Mapping[str, Any], within: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**stored, **asked}:
        there, here = stored.get(name), asked.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _different(there, here, f"{within}{name}.")
        elif there != here:
            yield within + name, there, here


def _words(name: str, value: Any) -> str:
    """An entry of a plan: "seed 0", "no seed", "100 image_ids", and the name alone where the value says nothing."""
    name = name.removeprefix("options.")
    if value is None or value is False:
        return f"no {name}"
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} {name}"
    if value is True or isinstance(value, dict) or (isinstance(value, str) and _DIGEST.fullmatch(value)):
        return name
    return f"{name} {shortened(value)}"
