"""The command line, called in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from rudder_hf.cli.main import app


def rudder(*arguments: object) -> Result:
    """Run `rudder` with these arguments."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, word: str, code: int = 2) -> None:
    """Check that there is one line on stderr that has the word in it, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert word in lines[0]
    assert "Traceback" not in result.stderr
