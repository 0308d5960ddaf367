"""What is compared: each method with its published and its tuned settings, RUDDER also as calibrated, and controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..calibrate.peers import Tuning
from ..methods import GROUPS, Method, Sources, method_class
from ..runtime.models import LoadedModel

PUBLISHED, TUNED, CALIBRATED, CONTROL = "published", "tuned", "calibrated", "control"
_SETTINGS = {"rudder": CALIBRATED, "peers": PUBLISHED, "controls": CONTROL}
NOTHING_BETTER = "no setting within the limits is better than vanilla"


@dataclass(frozen=True)
class Variant:
    """One method with certain settings.

    Attributes:
        name: Of the method.
        settings: Which settings: "published", "tuned", "calibrated" (RUDDER's own), "control"; empty for vanilla.
        method: The method with these settings; None if there is nothing to run.
        note: Why there is nothing to run.
    """

    name: str
    settings: str
    method: Method | None
    note: str = ""

    @property
    def key(self) -> str:
        """A name for folders."""
        return f"{self.name}-{self.settings}" if self.settings else self.name

    def refuses(self, decoding: str) -> str:
        """Why it does not support a way to decode; empty if it does."""
        return self.note if self.method is None else self.method.refuses(decoding)

    def first_decoding(self, decodings: Sequence[str]) -> str | None:
        """The first of some decodings that it supports."""
        return next((decoding for decoding in decodings if not self.refuses(decoding)), None)

    def asked(self, what: str) -> Method:
        """The method for "captions" or "questions": published settings may differ between them."""
        assert self.method is not None
        if self.settings != PUBLISHED or what != "questions":
            return self.method
        return replace(self.method, **self.method.for_questions)  # type: ignore[type-var]


def untuned(names: Sequence[str], loaded: LoadedModel, sources: Sources) -> dict[str, Variant]:
    """Each method as published, RUDDER and its controls as calibrated, with a note where it cannot be made."""
    made: dict[str, Variant] = {}
    for name in names:
        settings = next((word for group, word in _SETTINGS.items() if name in GROUPS[group]), "")
        try:
            made[name] = Variant(name, settings, method_class(name).for_model(loaded.model, sources))
        except ValueError as error:
            made[name] = Variant(name, settings, None, f"not run: {error}")
    return made


def candidates(made: Mapping[str, Variant], hidden_norms: Mapping[int, float]) -> dict[str, list[Method]]:
    """The settings that each method chooses from; none for a method that lacks something.

    Args:
        made: From `untuned`.
        hidden_norms: See `Method.search_space`.
    """
    found: dict[str, list[Method]] = {}
    for name, variant in made.items():
        kind, base = method_class(name), variant.method
        space = kind.search_space(hidden_norms)
        try:
            tried = [kind(**s) if base is None else replace(base, **s) for s in space]  # type: ignore[type-var]
        except ValueError:
            continue
        if tried:
            found[name] = tried
    return found


def with_tuned(
    made: Mapping[str, Variant], tried: Mapping[str, Sequence[Method]], tunings: Mapping[str, Tuning]
) -> list[Variant]:
    """All variants, vanilla first.

    Args:
        made: From `untuned`.
        tried: The settings that each tuned method chose from.
        tunings: What was chosen.
    """
    found: list[Variant] = []
    for name, variant in made.items():
        found.append(variant)
        if name in tunings:
            chosen = tunings[name].chosen
            method, note = (None, NOTHING_BETTER) if chosen is None else (tried[name][chosen], "")
            found.append(Variant(name, TUNED, method, note))
    return found
