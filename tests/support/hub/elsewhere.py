"""Processes in which `rudder_hf` is not installed, on a machine whose Hub is ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent.parent
ZYGOTE = str(Path(__file__).parent / "zygote.py")
# What would make the processes of one developer differ from those of another.
_PRIVATE = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PYTHON", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    status: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """What it printed last, as JSON. Fails with its error output if it failed."""
        assert self.status == 0, self.err
        return json.loads(self.out.strip().splitlines()[-1])


def environment(home: Path, endpoint: str, **more: str) -> dict[str, str]:
    """The environment of a process that knows nothing of this one's settings, tokens and caches."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(_PRIVATE)}
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*"}
    return {**kept, **ours, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", **more}


class Elsewhere:
    """A process that runs pieces of code, each in a fork of its own, with transformers loaded and without `rudder_hf`.

    Args:
        home: `HF_HOME`; a folder `work` in it is where the code runs.
        endpoint: Address of the Hub.
    """

    def __init__(self, home: Path, endpoint: str) -> None:
        self.work = home / "work"
        self.work.mkdir(parents=True)
        self.home, self.endpoint = home, endpoint
        self._process = subprocess.Popen(
            [sys.executable, ZYGOTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env=environment(home, endpoint),
        )

    def __enter__(self) -> Elsewhere:
        assert self._process.stdout is not None
        assert "transformers" in json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, code: str, *, package: bool = False, **env: str) -> Outcome:
        """Run code; with `package`, `rudder_hf` is on the path as if it was installed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"code": code, "env": env, "cwd": str(self.work), "path": [str(ROOT)] if package else []}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))

    def run_alone(self, code: str, **env: str) -> Outcome:
        """Run code in a process of its own, for what is read when libraries are imported (`HF_HUB_OFFLINE`)."""
        hide = f"import runpy; runpy.run_path({ZYGOTE!r})['hide']('rudder_hf')"
        done = subprocess.run(
            [sys.executable, "-c", f"{hide}\n{code}"],
            cwd=self.work,
            env=environment(self.home, self.endpoint, **env),
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)
