"""A results folder: what the work is and how much of it is done, safe against being killed at any moment.

OUT/plan.json   the command, the format of the folder, and everything that the results depend on
OUT/answers/    finished batches: one file for each process, one line of JSON for each batch

Repeated with the same plan, a command continues in its folder; a folder with another plan or of another command is
refused, and the message says what differs. A batch is on the disk before the next one begins, so a kill loses at most
the batch in progress. A line that a kill has torn is cut off when the file is continued.

```python
store = Store(out, "evaluate", process)
store.check()  # before a model is loaded: is the folder new, or this command's own?
store.start({"model": ..., "samples": ...})  # new, or the same work as before
with store:  # takes this process's file; a second run in the folder is refused
    done = {row["id"] for batch in store.batches() for row in batch["rows"]}
    for batch in what_is_left(done):
        store.append({"rows": answer(batch)})
write_over(out / "result.json", to_json(result))  # whole or not at all
```
"""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from filelock import FileLock, Timeout

from .environment import Process
from .errors import InputError, from_json, listed, shortened

Loaded = TypeVar("Loaded")
PLAN_FORMAT = 3
PLAN_FILE, RESULT_FILE = "plan.json", "result.json"
PATIENCE = 1800.0
"""Seconds without anything new after which waiting for other processes ends."""
_POLL = 0.5


class Store:
    """The results folder of one piece of work.

    Args:
        path: The folder.
        command: The command that the work belongs to.
        process: Which of several processes this one is.
    """

    def __init__(self, path: str | Path, command: str, process: Process | None = None) -> None:
        self.path, self.command, self.process = Path(path), command, process or Process()
        self._folder = self.path / "answers"
        self._file: Any = None

    def check(self) -> bool:
        """Check, before a model is loaded, that the folder is new or belongs to this command, and that nobody uses it.

        Returns:
            Whether work was begun in it.

        Raises:
            InputError: It is a file, cannot be written and is not finished, belongs to another command or an older
                version, or holds something else.
            BlockingIOError: Another run is at work in it.
        """
        begun = (self.path / PLAN_FILE).exists()
        if begun:
            self.plan()
        if begun and (self.path / RESULT_FILE).exists() and not os.access(self._folder, os.W_OK):
            return True
        check_folder(self.path)
        # Names that begin with a dot are drafts of a process that begins at this moment, or was killed then.
        others = sorted(entry.name for entry in self.path.glob("*") if not entry.name.startswith("."))
        if others and not begun:
            raise InputError(
                f"{self.path} is not empty and holds nothing that this version of rudder {self.command} could "
                f"continue ({listed(others, 3)}): choose a new folder."
            )
        if self._folder.is_dir():
            check_folder(self._folder)
            self._locked(self.process.rank).release()
        return begun

    def start(self, plan: Mapping[str, Any]) -> None:
        """Begin the work, or check that the folder already holds the same work.

        Args:
            plan: Everything that the results depend on and that must not change, as JSON values.

        Raises:
            InputError: The folder holds other work; the message says what differs.
        """
        self.check()
        text = to_json({"command": self.command, "format": PLAN_FORMAT, "plan": plan})
        if write_new(self.path / PLAN_FILE, text):
            return
        if changed := list(_differences(self.plan(), json.loads(text)["plan"])):
            raise InputError(
                f"{self.path} holds other work ({listed(changed, 4)}). Choose a new folder, or repeat the command of "
                "that run to continue it."
            )

    def plan(self) -> dict[str, Any]:
        """Return what `start` was given when the work began.

        Raises:
            InputError: This is no results folder of the command, or its plan is damaged.
        """
        path = self.path / PLAN_FILE
        if not path.is_file():
            raise InputError(f"{self.path} is no results folder of rudder {self.command}: it has no {PLAN_FILE}.")
        record = read_json(path, dict[str, Any])
        number, command = record.get("format"), record.get("command")
        if number != PLAN_FORMAT:
            raise InputError(
                f"{self.path} is of another version (format {number}, not {PLAN_FORMAT}): choose a new folder."
            )
        if command != self.command:
            raise InputError(f"{self.path} belongs to rudder {command}, not to {self.command}: choose another folder.")
        if not isinstance(record.get("plan"), dict):
            raise InputError(f"{path} is damaged: its plan is no object.")
        plan: dict[str, Any] = record["plan"]
        return plan

    def _locked(self, rank: int) -> FileLock:
        """Return the lock of a process's file, acquired."""
        return acquired(self._folder / f".{rank}.lock", f"Another run is writing to {self.path}")

    def __enter__(self) -> Self:
        """Take this process's file, so that no second run writes to it, and cut off a torn line.

        Raises:
            BlockingIOError: Another run is at work in this folder.
        """
        with _naming(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(self.process.rank)
        try:
            # Processes of an earlier, larger run may still be at work.
            for rank in sorted(int(path.name.split(".")[1]) for path in self._folder.glob(".*.lock")):
                if rank >= self.process.count:
                    self._locked(rank).release()
            path = self._folder / f"{self.process.rank}.jsonl"
            self._file = path.open("ab", buffering=0)
            self._file.truncate(len(_whole_lines(path)))
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.release()

    def append(self, batch: Mapping[str, Any]) -> None:
        """Add a finished batch, within `with store:`; it is on the disk when this returns."""
        with _naming(self._folder):
            line = json.dumps(batch, ensure_ascii=False).encode() + b"\n"
            while line:  # a nearly full disk writes only part of it
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())

    def batches(self, kind: Any = dict[str, Any]) -> Iterator[Any]:
        """Return all finished batches of all processes, without torn lines.

        Args:
            kind: The type of a batch, for [`from_json`].

        Raises:
            InputError: A line is damaged, or no such batch.
        """
        for path in sorted(self._folder.glob("*.jsonl")):
            yield from read_json_lines(path, kind, torn=True)

    def wait(self, missing: Callable[[], int], patience: float = PATIENCE) -> None:
        """Wait until the other processes have stored what this one needs.

        Args:
            missing: Counts what is not there yet, by reading `batches` anew.
            patience: Seconds without any new piece after which waiting ends.

        Raises:
            RuntimeError: Nothing new was stored for that long.
        """
        fewest, since = -1, time.monotonic()
        while left := missing():
            if left != fewest:
                fewest, since = left, time.monotonic()
            if time.monotonic() - since > patience:
                raise RuntimeError(
                    f"{left} pieces of other processes are missing and nothing has come for {patience:.0f} s: repeat "
                    "the command, nothing that is stored will be done again."
                )
            time.sleep(_POLL)


def check_folder(path: Path, own: bool = True) -> None:
    """Check that a folder can be created, or exists and can be written.

    Args:
        path: The folder.
        own: Whether a run may be in it.

    Raises:
        InputError: It cannot be written, or holds a run.
    """
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        raise InputError(f"{there} is a file: give a folder for the results.")
    if not os.access(there, os.W_OK):
        raise InputError(f"{there} cannot be written: choose a folder that can.")
    if not own and (path / PLAN_FILE).exists():
        raise InputError(f"{path} holds a run: choose another folder.")


def _differences(stored: Mapping[str, Any], asked: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Say what differs between two plans."""
    for name in {**stored, **asked}:
        there, here = stored.get(name), asked.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _differences(there, here, f"{within}{name}.")
        elif there != here:
            yield f"{within}{name} is {shortened(there)} there and {shortened(here)} here"


def acquired(path: Path, taken: str) -> FileLock:
    """Return the lock of a file, acquired.

    Raises:
        BlockingIOError: Another process has it; `taken` says what that process does.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"{taken}: wait for it, or choose another folder.") from None
    return lock


# Reading


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def read_json_lines(path: Path, kind: Any = dict[str, Any], torn: bool = False) -> list[Any]:
    """Read a file with one JSON value per line, each of the same type for [`from_json`].

    Args:
        path: The file.
        kind: The type of a line.
        torn: Whether to leave out a last line without an end, which a kill has torn.

    Raises:
        InputError: A line is damaged, or of another type.
    """
    found = []
    for number, line in enumerate((_whole_lines(path) if torn else path.read_bytes()).split(b"\n"), start=1):
        try:
            found += [from_json(kind, json.loads(line))] if line.strip() else []
        except ValueError as error:
            raise InputError(
                f"Line {number} of {path} is damaged ({error}): restore the file, or remove the line of a file of "
                "answers to do its batch again."
            ) from error
    return found


def read_json(path: Path, kind: Any = Any) -> Any:
    """Read a JSON file as a type for [`from_json`].

    Raises:
        InputError: It is damaged, or of another type.
    """
    try:
        return from_json(kind, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def read_result(path: Path, kind: type[Loaded], format: str, what: str) -> Loaded:
    """Read a JSON file as a dataclass, if its "format" is the present one.

    Raises:
        InputError: It is not `what` it should be, or is damaged.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != format:
        raise InputError(f"{path} is not {what} ({format}).")
    result: Loaded = read_json(path, kind)
    return result


# Writing


def to_json(value: Any) -> str:
    """Return the text of a JSON file; NaN and infinity are rejected."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name what could not be written, and say that nothing is lost."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}). What is finished is kept: make it writable or "
            "make room, and repeat the command to go on."
        ) from error


@contextmanager
def _drafted(path: Path, content: str | bytes) -> Iterator[Path]:
    """Yield a file beside `path` with the whole content, on the disk; it is removed afterwards."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            yield draft
        finally:
            draft.unlink(missing_ok=True)


def write_new(path: Path, content: str | bytes) -> bool:
    """Write a whole file unless it exists: never half a file, never over another one.

    Returns:
        Whether this call wrote it.
    """
    if path.exists():
        return False
    with _drafted(path, content) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError:
            # No hard links on this file system: a process killed in between can then leave an empty file.
            path.open("x").close()
            os.replace(draft, path)
    return True


def write_over(path: Path, content: str) -> None:
    """Write a whole file in place of the one that is there: for what can be made again from the answers."""
    with _drafted(path, content) as draft:
        os.replace(draft, path)


def must_write_new(path: Path, content: str | bytes) -> Path:
    """Write a whole file under a name that the user gave.

    Raises:
        FileExistsError: The file exists.
    """
    if not write_new(path, content):
        raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
    return path


def numbered_path(folder: Path, stem: str, suffix: str = "") -> Path:
    """Return the first of `stem-001`, `stem-002`, ... in a folder that does not exist yet."""
    paths = (folder / f"{stem}-{number:03d}{suffix}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())
