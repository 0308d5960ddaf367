"""What is compared: each method with its published and its tuned settings, RUDDER also as calibrated, and controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .. import methods as interventions
from ..calibrate.peers import Tuning
from ..evaluate.methods import GROUPS, settings_record
from ..methods import Intervention
from ..runtime.models import Subject

PUBLISHED, TUNED, CALIBRATED, CONTROL = "published", "tuned", "calibrated", "control"
NOTHING_BETTER = "no setting within the limits is better than vanilla"


@dataclass(frozen=True)
class Entry:
    """One method with certain settings.

    Attributes:
        method: Its name.
        variant: Which settings: "published", "tuned", "calibrated", "control", or nothing to choose.
        intervention: The method; None if there is nothing to run.
        note: Why there is nothing to run.
    """

    method: str
    variant: str
    intervention: Intervention | None
    note: str = ""

    @property
    def key(self) -> str:
        """A name for folders."""
        return f"{self.method}-{self.variant}" if self.variant else self.method

    def refuses(self, beams: int) -> str:
        """Why it cannot run with so many beams; empty if it can."""
        return self.note if self.intervention is None else self.intervention.refuses(beams)


@dataclass(frozen=True)
class Ingredients:
    """What methods need beside their settings.

    Attributes:
        subject: The model, and RUDDER's settings for it.
        directions: VTI's; None leaves it out.
        donors: CARDs of other pictures, for the control with another picture's CARD.
    """

    subject: Subject
    directions: Tensor | None
    donors: Tensor | None

    def make(self, name: str, **settings: Any) -> Intervention:
        """A method with settings on top of what it needs.

        Raises:
            ValueError: Something that it needs is missing.
        """
        given: dict[str, Any] = {}
        if name.startswith("rudder"):
            given["config"] = None if "layer" in settings else self.subject.settings_for(name)
        if name == "vti":
            given["directions"] = self.directions
        if name == "rudder-shuffled":
            given["donors"] = self.donors
        return interventions.get(name, **{**given, **settings})


def entries(
    names: Sequence[str], ingredients: Ingredients, candidates: Mapping[str, Sequence[Intervention]],
    tunings: Mapping[str, Tuning],
) -> list[Entry]:  # fmt: skip
    """All entries, vanilla first.

    Args:
        names: The methods.
        ingredients: What they need.
        candidates: The settings that each tuned method chose from.
        tunings: What was chosen.
    """
    found: list[Entry] = []
    for name in names:
        if name in GROUPS["rudder"]:
            found.append(_made(ingredients, name, CALIBRATED))
        elif name in GROUPS["controls"]:
            found.append(_made(ingredients, name, CONTROL))
        elif name in GROUPS["peers"]:
            found.append(_made(ingredients, name, PUBLISHED))
        else:
            found.append(_made(ingredients, name, ""))
        if name not in tunings:
            continue
        chosen = tunings[name].chosen
        if chosen is None:
            found.append(Entry(name, TUNED, None, NOTHING_BETTER))
        else:
            found.append(Entry(name, TUNED, candidates[name][chosen]))
    return found


def _made(ingredients: Ingredients, name: str, variant: str) -> Entry:
    try:
        return Entry(name, variant, ingredients.make(name))
    except ValueError as error:
        return Entry(name, variant, None, f"not run: {error}")


def same_settings(one: Entry, other: Entry) -> bool:
    """Whether two entries are the same method with the same settings, so that one run serves both."""
    if one.intervention is None or other.intervention is None or one.method != other.method:
        return False
    return _plain(one.intervention) == _plain(other.intervention)


def _plain(method: Intervention) -> dict[str, Any]:
    return {name: value for name, value in settings_record(method).items() if name != "calibrated"}
