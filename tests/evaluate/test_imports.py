"""`rudder evaluate` loads what it needs: no trainers, no method that was not asked for, no other command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rudder_hf.methods import METHODS

ROOT = Path(__file__).parent.parent.parent
CODE = """
import json, sys
from rudder_hf.cli.main import app
try:
    app()
except SystemExit as left:
    assert not left.code, left.code
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_only_what_was_asked_for_is_imported(tmp_path: Path) -> None:
    arguments = [
        *("evaluate", "--methods", "vanilla,rudder-beta", "--limit", "2", "--max-new-tokens", "4"),
        *("--bootstrap", "20", "--device", "cpu", "--out", str(tmp_path / "out")),
    ]
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "result.json").exists()
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    folders = {name.split(".")[1] for name in loaded if name.startswith("rudder_hf.")}
    assert not folders & {"benchmark", "calibrate", "compare", "analyze", "demo", "integrations"}
    methods = {place.split(":")[0] for place in METHODS.values()}
    assert methods & {name.removeprefix("rudder_hf.methods.") for name in loaded} == {"rudder"}
    assert not loaded & {"tools", "vllm", "matplotlib", "nltk", "gradio"}
