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
_KINDS: dict[type, type] = {float: Real, int: Integral, bool: bool, str: str}
# Name -> type, the least and the greatest value (of a string: all that are allowed), and this in words.
_RULES: dict[str, tuple[type, tuple[Any, ...], str]] = {
    # Wide, but such that float32 has room for what is computed from them.
    "alpha_max": (float, (0, 1e6), "a number in [0, 1e6] (strength of the push, in units of the hidden state)"),
    "k": (float, (0, 1e6), "a number in [0, 1e6] (sensitivity of the gate)"),
    "c": (float, (-50, 50), "a number in [-50, 50] (concentration of the gate, typically 0.5 to 1.5)"),
    "g_min": (float, (0, 1), "a number in [0, 1]"),
    "g_max": (float, (0, 1), "a number in [0, 1]"),
    "norm_cap": (float, (math.nextafter(0, 1), 1e6), "None or a number in (0, 1e6] (tau, the longest push)"),
    "mode": (str, MODES, "one of 'beta', 'add'"),
    "pool": (str, ("mean", "norm"), "one of 'mean', 'norm'"),
    "span": (str, ("prompt", "text", "image"), "one of 'prompt', 'text', 'image'"),
    "steer_first_token": (bool, (False, True), "True or False"),
    "force": (bool, (False, True), "True or False"),
    "contrast": (float, (0, 100), "a number in [0, 100] (lambda of the image-value contrast; 0 switches it off)"),
    "contrast_first_layer": (int, (0, math.inf), "an integer from 0 on: the first decoder layer that is contrasted"),
    "contrast_after": (int, (1, math.inf), "an integer from 1 on: the number of answer tokens before the contrast"),
    "layer": (int, (-math.inf, math.inf), "an integer: 0-based decoder layer, negative counts from the end"),
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
    """Return one setting of one row as a plain Python value; raise a ValueError that says what is allowed."""
    if name not in _RULES:
        raise unknown_settings_error([name])
    kind, bounds, allowed = _RULES[name]
    if name == "norm_cap" and value is None:
        return None
    # A bool is an integer to Python. Numbers are compared before an integer that is too large becomes a float.
    fits = isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind is bool)
    if not fits or not (value in bounds if kind is str else bounds[0] <= value <= bounds[1]):
        raise setting_error(name, value, allowed)
    return kind(value)


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
