"""What the tests of serving share: the commands of the page on serving, and a server process of its own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hub.elsewhere import environment

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "serving"
PAGE = ROOT / "docs" / "serving.md"
# `transformers` as a console script, which need not be on the path of whoever runs the tests.
_TRANSFORMERS = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]


def page_commands() -> list[str]:
    """The commands in the page's shell blocks, without comments; lines that end with a backslash are joined."""
    commands: list[str] = []
    for block in PAGE.read_text().split("```bash\n")[1:]:
        text = block.split("```")[0].replace("\\\n", " ")
        commands += [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return commands


def page_command(start: str) -> list[str]:
    """The arguments of the one command on the page that begins like this, as a shell would split them."""
    found = [command for command in page_commands() if command.startswith(start)]
    assert len(found) == 1, (start, found)
    return shlex.split(found[0], comments=True)


def transformers_command(words: list[str]) -> list[str]:
    """`transformers ...` for a process without a shell."""
    assert words[0] == "transformers"
    return [*_TRANSFORMERS, *words[1:]]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def elsewhere_environment(home: Path) -> dict[str, str]:
    """The environment of a machine of its own, without a Hub and without the package on its path."""
    return environment(home, "http://127.0.0.1:9")


@contextmanager
def serving(words: list[str], folder: Path, home: Path) -> Iterator[str]:
    """Run `transformers serve ...` in a folder; gives the address once it answers, and ends it afterwards."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    log = home / "server.log"
    home.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        process = subprocess.Popen(
            transformers_command([*words, "--host", "127.0.0.1", "--port", str(port)]),
            cwd=folder,
            env=elsewhere_environment(home),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(f"{address}/health", process, log)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path, patience: float = 300.0) -> None:
    """Wait for a server; torch and its friends load slowly on a busy machine."""
    deadline = time.monotonic() + patience
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)


def with_package() -> dict[str, str]:
    """The environment of a process that imports this checkout."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
