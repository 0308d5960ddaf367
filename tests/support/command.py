"""The command line, called in this process or as one of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from rudder_hf.cli.main import app
from tests.support.serving import with_package


def rudder(*arguments: object) -> Result:
    """Run `rudder` with these arguments."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def started(
    *arguments: object, module: bool = True, folder: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """`rudder`, or Python itself if no `module` is to be run, as a process, with both of its streams in `stdout`."""
    return subprocess.Popen(
        [sys.executable, *(["-m", "rudder_hf"] if module else []), *map(str, arguments)],
        env=with_package() | environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Tests that run in the background of a shell are deaf to Ctrl-C, and so would be their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def refused(result: Result, word: str, code: int = 2) -> None:
    """Check that there is one line on stderr that has the word in it, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert word in lines[0]
    assert "Traceback" not in result.stderr
