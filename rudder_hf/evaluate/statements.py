"""What intervals allow to be said, in words: one function for each kind of sentence, so that none is written by hand.

A difference counts where its paired 95 % interval leaves 0 out and its p is at most 0.05, and an absence of effect
where the whole interval lies within a margin that was stated before; anything else is open. Nothing is corrected for
number.
"""

from __future__ import annotations

from ..runtime.report import number, with_interval
from .result import ControlResult, MetricDifference

WINS, TIES, LOSES = "wins", "ties", "loses"
LEVEL = 0.05
"""Greatest p of a paired permutation test at which a difference counts."""
MARGIN = 1 / 3
"""Share of RUDDER's own change within which the whole interval of a control has to lie to be without effect."""

_JUDGED = ("chair_s", "chair_i", "chair_i_distinct", "f1")
_ABSENT = {"chair_s", "chair_i_distinct"}
_REPEATABLE = "chair_i"  # every mention counts, so that naming what is there twice lowers it
_GROUPS = {WINS: "better in", LOSES: "worse in", TIES: "no significant difference in"}


def verdict(change: MetricDifference) -> str:
    """Whether the first of two wins, ties or loses, by the interval and p of the first minus the second."""
    # On few images an interval can leave 0 out that the permutation test does not.
    if change.low <= 0.0 <= change.high or change.p_value > LEVEL:
        return TIES
    return WINS if (change.value < 0) == (change.direction == "lower") else LOSES


def control_in_words(uncut: bool) -> str:
    """The truncated control of a method; it is uncut if the method recalls as much as vanilla or more."""
    return "vanilla, whose recall is not higher" if uncut else "vanilla cut to the same recall"


def against_control(label: str, control: ControlResult) -> str:
    """Whether a method is better than vanilla's captions cut to its recall: more than saying less.

    Args:
        label: The method, as the table calls it.
        control: Its control.
    """
    judged = {name: control.differences[name] for name in _JUDGED if name in control.differences}
    found: dict[str, list[str]] = {}
    for name, change in judged.items():
        found.setdefault(verdict(change), []).append(name)
    better, worse = found.get(WINS, []), found.get(LOSES, [])
    if better and worse:
        lead = "is better in some and worse in others than"
    elif better == [_REPEATABLE]:
        lead = "is better in CHAIR_I alone, which repeated true objects lower too, than"
    elif better:
        lead = "names fewer absent objects than" if set(better) & _ABSENT else "is better than"
    elif worse:
        lead = "names more absent objects than" if set(worse) & _ABSENT else "is worse than"
    else:
        lead = "is not significantly different from"
    parts = []
    for group, words in _GROUPS.items():
        told = ", ".join(_told(judged[name]) for name in found.get(group, []))
        if told:
            parts.append(f"{words} {told}" if len(found) > 1 else told)
    return f"{label} {lead} {control_in_words(control.mentions is None)}: {'; '.join(parts)}."


def without_effect(label: str, change: MetricDifference, effect: MetricDifference, of: str) -> str:
    """Whether a control does nothing: an equivalence, which a missing significance is not.

    Args:
        label: The control, as the table calls it.
        change: Its change against vanilla.
        effect: The change of the method that it is a control of.
        of: That method, as the table calls it.
    """
    told = f"{label}: {_told(change)}"
    if verdict(effect) == TIES:
        return f"{told}: nothing to measure it by, because the change of {of} itself is open."
    margin = MARGIN * abs(effect.value)
    within = f"+-{number(margin, change.unit)} ({MARGIN:.0%} of the change of {of})"
    if max(abs(change.low), abs(change.high)) <= margin:
        return f"{told}: without effect, its interval lies within {within}."
    if verdict(change) == TIES:
        return f"{told}: open, its interval holds 0 and leaves {within}."
    return f"{told}: not without effect, its interval leaves out 0 and leaves {within}."


def _told(change: MetricDifference) -> str:
    return f"{change.label} {with_interval(change.value, change.low, change.high, change.unit, sign=True)}"
