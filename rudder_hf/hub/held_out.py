"""The held-out results of a calibration record as Markdown for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The metrics on the card, by their names in a calibration record.
_METRIC_NAMES = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "chair_i_distinct": "distinct CHAIR_I",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "repeated_mentions": "repeated mentions",
    "broken_sentences": "broken sentences",
}
_DIFFERENCE = ("left", "right", "value", "low", "high")
_MOST_P_VALUE = 0.05
_HELD_OUT_NOTES = (
    "In brackets the paired 95 % interval of the change. A change is shown if its interval leaves out 0 and its "
    f"paired p-value is at most {_MOST_P_VALUE}. CHAIR_S: captions that name an object which is not in the image. "
    "CHAIR_I: such mentions among all mentions (distinct: each object of a caption once). Recall: objects of the "
    "image that are named. Vanilla: the base model as it is."
)


def held_out_text(record: Mapping[str, Any]) -> str:
    """Describe a calibration's held-out results in a table and in a sentence; empty if the record has none."""
    change, less = (differences(record.get(name)) for name in ("held_out", "held_out_minus_truncated"))
    if not change:
        return ""
    images, recall = record.get("held_out_images"), change.get("recall")
    columns = {"vanilla": change}
    uncut = recall is not None and recall["right"] >= recall["left"]
    if less and not uncut:
        columns["vanilla cut to the same recall"] = less
    said = [f"Against {name} these images {_in_words(found)}." for name, found in columns.items()]
    if less and uncut:
        said.append("The settings recall no less, so that vanilla's captions need not be cut to the same recall.")
    parts = [
        f"On {len(images) if isinstance(images, list) else 'the'} held-out images, in percent:",
        _held_out_table(columns),
        _HELD_OUT_NOTES,
        " ".join(said),
    ]
    own = differences(record.get("held_out_own_minus_other_card")).get("chair_s")
    if own is not None:
        about = "that much is about the image" if own["high"] < 0 else "the effect may not be about the image"
        parts.append(f"CHAIR_S minus that with another image's CARD: {_interval(own)}: {about}.")
    return "\n\n".join(parts)


def differences(found: Any) -> dict[str, Mapping[str, float]]:
    """Return those differences of a record that the card shows, by metric, in the card's order."""
    known = found if isinstance(found, Mapping) else {}
    return {
        name: known[name]
        for name in _METRIC_NAMES
        if isinstance(known.get(name), Mapping)
        and all(isinstance(known[name].get(key), (int, float)) for key in _DIFFERENCE)
    }


def _held_out_table(columns: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Every metric before and after, with the interval of its change; a column for each thing compared against."""
    rows = [["", *(f"against {name}" for name in columns)], ["---"] * (1 + len(columns))]
    for metric in columns["vanilla"]:
        row = [_METRIC_NAMES[metric]]
        for found in columns.values():
            row.append(_before_and_after(found[metric]) if metric in found else "")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _before_and_after(change: Mapping[str, float]) -> str:
    return f"{100 * change['left']:.1f} to {100 * change['right']:.1f} ({_interval(change)})"


def _interval(change: Mapping[str, float]) -> str:
    value, low, high = (100 * change[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _in_words(changes: Mapping[str, Mapping[str, float]]) -> str:
    """Say which changes intervals and p-values show, and which they leave open."""
    groups: dict[str, list[str]] = {"lower": [], "higher": [], "": []}
    for name, change in changes.items():
        p_value = change.get("p_value")  # old records have none
        open_ = change["low"] <= 0 <= change["high"] or (isinstance(p_value, (int, float)) and p_value > _MOST_P_VALUE)
        groups["" if open_ else "lower" if change["high"] < 0 else "higher"].append(_METRIC_NAMES[name])
    shown = " and ".join(f"{group} {', '.join(names)}" for group, names in groups.items() if group and names)
    left_open = f"leave open a change of {', '.join(groups[''])}" if groups[""] else ""
    return ", and ".join(part for part in (f"show {shown}" if shown else "", left_open) if part)
