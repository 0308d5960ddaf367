"""The settings of RUDDER: their names, and the rule that each value has to meet."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from .version import __version__

MODEL_TYPE = "rudder"  # of the configs that hold settings
# Settings that may differ from row to row of a batch. The others shape the computation of the whole call.
STEERING_ROWS = ("alpha_max", "k", "c", "g_min", "g_max", "norm_cap")
ROW_SETTINGS = (*STEERING_ROWS, "contrast")
# Of the image-value contrast, which is not in the paper. Configs written before it was there mean these values.
CONTRAST_DEFAULTS: dict[str, Any] = {"contrast": 0.0, "contrast_first_layer": 2, "contrast_after": 1}
CALL_SETTINGS = (*STEERING_ROWS, "mode", "pool", "span", "steer_first_token", *CONTRAST_DEFAULTS)

MODES = ("beta", "add")
_CHOICES = {"mode": MODES, "pool": ("mean", "norm"), "span": ("prompt", "text", "image")}
_TRUE_OR_FALSE = ("steer_first_token", "force")
_NUMBER_RANGES: dict[str, tuple[float, float, str]] = {
    # Wide, but such that float32 has room for what is computed from them.
    "alpha_max": (0.0, 1e6, "a number in [0, 1e6] (strength of the push, in units of the hidden state)"),
    "k": (0.0, 1e6, "a number in [0, 1e6] (sensitivity of the gate)"),
    "c": (-50.0, 50.0, "a number in [-50, 50] (concentration of the gate, typically 0.5 to 1.5)"),
    "g_min": (0.0, 1.0, "a number in [0, 1]"),
    "g_max": (0.0, 1.0, "a number in [0, 1]"),
    "norm_cap": (math.nextafter(0.0, 1.0), 1e6, "None or a number in (0, 1e6] (tau, the longest push)"),
    "contrast": (0.0, 100.0, "a number in [0, 100] (lambda of the image-value contrast; 0 switches it off)"),
}
# Whole numbers, with the least one that is allowed.
_INTEGERS: dict[str, tuple[float, str]] = {
    "layer": (-math.inf, "an integer: 0-based decoder layer, negative counts from the end"),
    "contrast_first_layer": (0, "an integer from 0 on: the first decoder layer whose image values are contrasted"),
    "contrast_after": (1, "an integer from 1 on: the number of answer tokens before the image values are contrasted"),
}
_LONGEST_VALUE = 200  # characters of a refused value that a message repeats


def setting_error(name: str, value: Any, allowed: str) -> ValueError:
    """Make the error for a refused value: what was given, and what is allowed."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4,300 digits.
        shown = f"a {type(value).__name__} too long to write"
    if len(shown) > _LONGEST_VALUE:
        shown = f"{shown[:_LONGEST_VALUE]}... ({len(shown)} characters)"
    return ValueError(f"RUDDER setting `{name}` is {shown}, but has to be {allowed}.")


def unknown_settings_error(names: Iterable[str], version: str | None = None) -> ValueError:
    """Make the error for names that are no settings, written by a `version`; suggests one that is almost right."""
    known = ("layer", *CALL_SETTINGS)
    shown = sorted(str(name)[:_LONGEST_VALUE] for name in names)
    close = [match for name in shown for match in difflib.get_close_matches(name, known, n=1, cutoff=0.8)]
    hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
    are = "is not a RUDDER setting" if len(shown) == 1 else "are no RUDDER settings"
    if version not in (None, __version__):
        are += f" of rudder_hf {__version__} (written by {str(version)[:_LONGEST_VALUE]}: install that version)"
    return ValueError(f"{', '.join(map(repr, shown))} {are}.{hint} Settings: {', '.join(known)}.")


def check_setting(name: str, value: Any) -> Any:
    """Check one setting of one row and return it as a plain Python value.

    Raises:
        ValueError: The value is of the wrong type or out of range; the message says what is allowed.
    """
    if name in _NUMBER_RANGES:
        low, high, allowed = _NUMBER_RANGES[name]
        if name == "norm_cap" and value is None:
            return None
        # Compared before it is converted: an integer may be too large for a float.
        number: Any = value
        if not isinstance(value, Real) or isinstance(value, bool) or not low <= number <= high:
            raise setting_error(name, value, allowed)
        return float(value)
    if name in _CHOICES:
        if not isinstance(value, str) or value not in _CHOICES[name]:
            raise setting_error(name, value, "one of " + ", ".join(map(repr, _CHOICES[name])))
        return value
    if name in _TRUE_OR_FALSE:
        if not isinstance(value, bool):
            raise setting_error(name, value, "True or False")
        return value
    if name in _INTEGERS:
        least, allowed = _INTEGERS[name]
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise setting_error(name, value, allowed)
        return int(value)
    raise unknown_settings_error([name])


def check_gate_range(g_min: float, g_max: float) -> None:
    """Raise a ValueError if the gate's range is empty."""
    if g_min > g_max:
        raise ValueError(f"RUDDER needs g_min <= g_max, got g_min={g_min!r} and g_max={g_max!r}.")


def push_settings(row: Mapping[str, Any], mode: str) -> tuple[float, ...]:
    """Return alpha_max, k, c, g_min, g_max and norm_cap of one row as the equations take them.

    RUDDER-Add is a gate of 1, which the norm cap may lower; a row without a norm cap has an infinite one.
    """
    folded = {**row, "norm_cap": math.inf if row["norm_cap"] is None else row["norm_cap"]}
    if mode == "add":
        folded |= {"g_min": 1.0, "g_max": 1.0}
    return tuple(folded[name] for name in STEERING_ROWS)
