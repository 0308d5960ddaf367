"""Errors, and warnings that point at the user's line, not at ours."""

from __future__ import annotations

import sys
import warnings

from transformers.utils import logging

logger = logging.get_logger(__name__)

# Packages between the user's call and our code.
_PASSED_OVER = ("rudder_hf", "transformers_modules", "transformers", "torch", "peft", "accelerate", "contextlib")


class UnsupportedModelError(ValueError):
    """The model cannot be steered; the message says why and what can be done."""


class RudderWarning(UserWarning):
    """RUDDER does something else than a user may expect."""


def warn(message: str) -> None:
    """Issue a [`RudderWarning`] at the nearest line outside of this package and the libraries it works in."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, RudderWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)
