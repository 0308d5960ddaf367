"""A process that has torch and transformers loaded and forks for each piece of code, so that each costs no import.

Run by `Elsewhere`. It reads one JSON object per line (`code`, `env`, `path`, `cwd`) and answers one per line
(`status`, `out`, `err`). The fork has no module of the project and none of transformers' remote code loaded.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any


def hide(package: str) -> None:
    """Make a package as good as not installed, which it is where the tests run from an installation."""

    class Hiding:
        def __init__(self, finder: Any) -> None:
            self.finder = finder

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return None if name.partition(".")[0] == package else self.finder.find_spec(name, path, target)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.finder, name)

    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]


def run(task: dict) -> None:
    """Run a task in this process, which is its own."""
    if not task["path"]:
        hide("rudder_hf")
    os.environ.update(task["env"])
    os.chdir(task["cwd"])
    sys.path[:0] = task["path"]
    # The folder of this script is no part of what users have on their path.
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    exec(compile(task["code"], "<task>", "exec"), {"__name__": "__main__"})


def fork(task: dict) -> dict:
    """Run a task in a child and collect what it says."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 0
            try:
                run(task)
            except SystemExit as leave:
                status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
            except BaseException:
                traceback.print_exc()
                status = 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"status": status, "out": out.read().decode(), "err": err.read().decode(errors="replace")}


def main() -> None:
    """Load what is heavy, then serve."""
    import torch
    import transformers
    from transformers import AutoModelForImageTextToText, LlavaForConditionalGeneration, LlavaProcessor  # noqa: F401

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"transformers": transformers.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), file=answers, flush=True)
    # Nothing is left to tidy up, and torch takes its time to.
    os._exit(0)


if __name__ == "__main__":
    main()
