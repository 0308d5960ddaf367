"""What is compared: each method with its published and its tuned settings, RUDDER also as calibrated, and controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..calibrate.peers import Tuning
from ..methods import GROUPS, Method, Sources, method_class
from ..runtime.models import Subject

PUBLISHED, TUNED, CALIBRATED, CONTROL = "published", "tuned", "calibrated", "control"
_VARIANTS = {"rudder": CALIBRATED, "peers": PUBLISHED, "controls": CONTROL}
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
    intervention: Method | None
    note: str = ""

    @property
    def key(self) -> str:
        """A name for folders."""
        return f"{self.method}-{self.variant}" if self.variant else self.method

    def refuses(self, decoding: str) -> str:
        """Why it does not support a way to decode; empty if it does."""
        return self.note if self.intervention is None else self.intervention.refuses(decoding)

    def asked(self, what: str) -> Method:
        """The method for "captions" or "questions": published settings may differ between them."""
        assert self.intervention is not None
        if self.variant != PUBLISHED or what != "questions":
            return self.intervention
        return replace(self.intervention, **self.intervention.for_questions)  # type: ignore[type-var]


def make_for(names: Sequence[str], subject: Subject, sources: Sources) -> dict[str, Entry]:
    """Each method as published, RUDDER and its controls as calibrated, with a note where it cannot be made."""
    made: dict[str, Entry] = {}
    for name in names:
        variant = next((word for group, word in _VARIANTS.items() if name in GROUPS[group]), "")
        try:
            made[name] = Entry(name, variant, method_class(name).for_model(subject.model, sources))
        except ValueError as error:
            made[name] = Entry(name, variant, None, f"not run: {error}")
    return made


def candidates(made: Mapping[str, Entry], hidden_norms: Mapping[int, float]) -> dict[str, list[Method]]:
    """The settings that each method chooses from; none for a method that lacks something.

    Args:
        made: From `make_for`.
        hidden_norms: See `Method.search_space`.
    """
    found: dict[str, list[Method]] = {}
    for name, entry in made.items():
        kind, base = method_class(name), entry.intervention
        space = kind.search_space(hidden_norms)
        try:
            tried = [kind(**s) if base is None else replace(base, **s) for s in space]  # type: ignore[type-var]
        except ValueError:
            continue
        if tried:
            found[name] = tried
    return found


def entries(
    made: Mapping[str, Entry], tried: Mapping[str, Sequence[Method]], tunings: Mapping[str, Tuning]
) -> list[Entry]:
    """All entries, vanilla first.

    Args:
        made: From `make_for`.
        tried: The settings that each tuned method chose from.
        tunings: What was chosen.
    """
    found: list[Entry] = []
    for name, entry in made.items():
        found.append(entry)
        if name not in tunings:
            continue
        chosen = tunings[name].chosen
        if chosen is None:
            found.append(Entry(name, TUNED, None, NOTHING_BETTER))
        else:
            found.append(Entry(name, TUNED, tried[name][chosen]))
    return found


def same_settings(one: Entry, other: Entry, what: str) -> bool:
    """Whether two entries have the same settings for "captions" or "questions", so that one run serves both."""
    if one.intervention is None or other.intervention is None or one.method != other.method:
        return False
    return one.asked(what).settings() == other.asked(what).settings()
