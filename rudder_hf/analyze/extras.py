"""The optional packages that figures and some statistics need."""

from __future__ import annotations

import importlib.util

NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}


def missing() -> list[str]:
    """Names, as pip knows them, of the packages that are not installed."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def require() -> None:
    """See that the packages are installed, before anything large is loaded.

    Raises:
        ImportError: Some are not, with the command that installs them.
    """
    absent = missing()
    if absent:
        raise ImportError(f"The analysis needs {' and '.join(absent)}: pip install 'rudder-hf[plots]'.")
