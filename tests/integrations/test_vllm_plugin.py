"""How vLLM finds RUDDER, without vLLM: nothing is imported before the entry point is called, and errors are raised."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tests.support.serving import ROOT, with_package


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], env=with_package(), capture_output=True, text=True)


def test_the_entry_point_imports_nothing() -> None:
    """vLLM goes on without a plugin that cannot be imported, which would be to answer unsteered."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, function = points["vllm.general_plugins"]["rudder_hf"].split(":")
    done = run(f"import sys; old = set(sys.modules); from {module} import {function}; print(set(sys.modules) - old)")
    assert done.stdout.strip() == str({module}), done.stderr


def test_errors_of_importing_are_raised_by_the_call() -> None:
    moved = "import sys; sys.modules['transformers'] = None; from rudder_hf_vllm import register; print('loaded')"
    done = run(f"{moved}; register()")
    assert done.stdout == "loaded\n"
    assert done.stderr.strip().splitlines()[-1].startswith("RuntimeError: RUDDER cannot be imported beside this vLLM")
    assert "pip uninstall rudder-hf" in done.stderr
