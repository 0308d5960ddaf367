"""Calibration: find layer, strength and sensitivity of RUDDER for any model on a few held-out pictures."""

from .decoding import Decoded, SettingsDecoder
from .settings import VANILLA, Setting

__all__ = ["Decoded", "Setting", "SettingsDecoder", "VANILLA"]
