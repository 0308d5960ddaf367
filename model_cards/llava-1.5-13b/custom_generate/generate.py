"""Steers any model that the settings fit: `model.generate(..., custom_generate=...)`."""

from .custom_generate_rudder import generate_steered
from .settings import SETTINGS


def generate(model, **kwargs):
    """The model's own `generate` with RUDDER; takes `rudder=` and `output_rudder=` too."""
    return generate_steered(model, SETTINGS, **kwargs)
