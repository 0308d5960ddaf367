"""A results folder: what the work is and how much of it is done, safe against being killed at any moment.

OUT/plan.json   the command, the format of the folder, and everything that the results depend on
OUT/batches/    finished batches: one file for each process, one line of JSON for each batch

Every command that takes long keeps its work in such a folder. Repeated with the same plan it continues there; with
another plan, or in the folder of another command, it is refused, and the message says what differs. A batch is on the
disk before the next one begins, so a kill loses at most the batch that was being worked on. Each process writes a file
of its own; what is done is the union of all files. A line that a kill has torn is cut off when the file is continued.

```python
store = Store(out, "evaluate", process)
store.check()  # before a model is loaded: is the folder new, or this command's own?
store.start({"model": ..., "samples": ...})  # new, or the same work as before
with store:  # takes this process's file; a second run in the folder is refused
    done = {row["id"] for batch in store.batches() for row in batch["rows"]}
    for batch in what_is_left(done):
        store.append({"rows": answer(batch)})
write_new(out / "result.json", to_json(result))  # whole or not at all, never over another file
```
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from filelock import FileLock, Timeout

from ..metrics.errors import InputError, listed
from .environment import Process
from .plans import Command, differences, in_words
from .records import from_json

Batch = dict[str, Any]
Result = TypeVar("Result")

FORMAT = 2
PLAN_FILE = "plan.json"
PATIENCE = 1800.0
"""Seconds without anything new after which waiting for other processes ends."""

_BATCHES = "batches"
_POLL = 0.5


class Store:
    """The results folder of one piece of work.

    Args:
        path: The folder.
        command: The command that the work belongs to.
        process: Which of several processes this one is.

    Attributes:
        plan_kind: The type of the plan, for [`from_json`].
    """

    plan_kind: ClassVar[Any] = dict[str, Any]

    def __init__(self, path: str | Path, command: Command, process: Process | None = None) -> None:
        self.path, self.command = Path(path), command
        self.process = process or Process()
        self._folder = self.path / _BATCHES
        self._lock = FileLock(self._folder / f"process-{self.process.rank:04d}.jsonl.lock")
        self._file: Any = None

    # The plan

    def check(self) -> bool:
        """See that the folder is new or belongs to this command, before hours are spent.

        Returns:
            Whether work was begun in it.

        Raises:
            InputError: It is a file, belongs to another command or an older version, or holds something else.
        """
        check_folder(self.path)
        if (self.path / PLAN_FILE).exists():
            self.plan()
            return True
        # Names that begin with a dot are drafts of a process that begins at this moment, or was killed then.
        others = sorted(entry.name for entry in self.path.glob("*") if not entry.name.startswith("."))
        if others:
            raise InputError(
                f"{self.path} is not empty and holds nothing that this version of rudder {self.command} could "
                f"continue ({listed(others, 3)}): choose a new folder."
            )
        return False

    def start(self, plan: Mapping[str, Any]) -> None:
        """Begin the work, or see that the folder holds the same work already.

        Args:
            plan: Everything that the results depend on and that must not change, as JSON has it.

        Raises:
            InputError: The folder holds other work; the message says what differs.
        """
        self.check()
        text = to_json({"command": self.command, "format": FORMAT, "plan": plan})
        if write_new(self.path / PLAN_FILE, text):
            return
        stored = self.plan()
        there, here = differences(stored, json.loads(text)["plan"])
        if here:
            held = in_words(self.command, stored) + (f" with {listed(there)}" if there else "")
            raise InputError(
                f"{self.path} holds {held}; this command has {listed(here)}. Choose a new folder, or repeat the "
                "command of that run to continue it."
            )

    def plan(self) -> dict[str, Any]:
        """What `start` was given when the work began.

        Raises:
            InputError: This is no results folder of the command, or its plan is damaged.
        """
        path = self.path / PLAN_FILE
        if not path.is_file():
            raise InputError(f"{self.path} is no results folder of rudder {self.command}: it has no {PLAN_FILE}.")
        record = read_json(path, dict[str, Any])
        number, command, plan = (record.get(name) for name in ("format", "command", "plan"))
        if number != FORMAT:
            raise InputError(
                f"{path} has format {number} and this version reads format {FORMAT}: choose a new folder."
            )
        if command != self.command:
            raise InputError(
                f"{self.path} holds {in_words(command, plan)}, not {in_words(self.command)}: choose another folder."
            )
        try:
            found: dict[str, Any] = from_json(self.plan_kind, plan, "plan")
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}.") from error
        return found

    # Batches

    def __enter__(self) -> Self:
        """Take this process's file, so that no second run writes to it, and cut off a torn line.

        Raises:
            BlockingIOError: Another run is at work in this folder.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._acquire(self._lock)
        try:
            # Processes of an earlier, larger run may still be at work.
            for path in sorted(self._folder.glob("process-*.jsonl.lock")):
                if int(path.name.removeprefix("process-").split(".")[0]) >= self.process.count:
                    lock = FileLock(path)
                    self._acquire(lock)
                    lock.release()
            path = self._folder / f"process-{self.process.rank:04d}.jsonl"
            self._file = path.open("ab")
            self._file.truncate(len(_whole_lines(path)))
        except BaseException:
            self._lock.release()
            raise
        return self

    def _acquire(self, lock: FileLock) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(
                f"Another run is writing to {self.path}: wait for it, or choose another folder."
            ) from None

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.release()

    def append(self, batch: Mapping[str, Any]) -> None:
        """Add a finished batch, within `with store:`; it is on the disk when this returns."""
        self._file.write(json.dumps(batch, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def batches(self, kind: Any = Batch) -> Iterator[Any]:
        """All finished batches of all processes; torn lines are left out.

        Args:
            kind: The type of a batch, for [`from_json`].

        Raises:
            InputError: A line is damaged, or no such batch.
        """
        for path in sorted(self._folder.glob("process-*.jsonl")):
            yield from _parsed_lines(path, _whole_lines(path), kind, "remove the line to do its batch again")

    def wait(self, missing: Callable[[], int], patience: float = PATIENCE) -> None:
        """Wait until the other processes have stored what this one needs.

        Args:
            missing: How many pieces are not there yet; has to read `batches` anew.
            patience: Seconds without any new piece after which waiting ends.

        Raises:
            RuntimeError: Nothing comes any more, or there is no other process to wait for.
        """
        fewest, since = -1, time.monotonic()
        while left := missing():
            if self.process.count == 1:
                raise RuntimeError(f"{left} pieces of the work are missing, and no other process does them.")
            if left != fewest:
                fewest, since = left, time.monotonic()
            if time.monotonic() - since > patience:
                raise RuntimeError(
                    f"{left} pieces of other processes are missing and nothing has come for {patience:.0f} s: repeat "
                    "the command, nothing that is stored will be done again."
                )
            time.sleep(_POLL)


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def check_folder(path: Path, own: bool = True) -> None:
    """See that a folder can be made, or is one.

    Args:
        path: The folder.
        own: Whether what goes there may be a run's own; False refuses the folder of any run.

    Raises:
        InputError: It cannot, or is refused.
    """
    blocking = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
    if blocking is not None:
        raise InputError(f"{blocking} is a file: give a folder for the results.")
    if not own and (path / PLAN_FILE).exists():
        record = read_json(path / PLAN_FILE, dict[str, Any])
        raise InputError(f"{path} holds {in_words(record.get('command'), record.get('plan'))}: choose another folder.")


def kept(out: Path) -> str:
    """What a results folder holds of finished work, in words; empty if there is nothing, or if it is none."""
    if not (out / PLAN_FILE).exists():
        return ""
    answers = 0
    for path in out.glob(f"**/{_BATCHES}/*.jsonl"):
        for line in _whole_lines(path).splitlines():
            with suppress(ValueError, TypeError):  # a damaged line, which is named when the work goes on
                answers += _answers(json.loads(line))
    files = sorted(path.name for path in (*out.glob("*.json"), *out.glob("state/*.json")) if path.name != PLAN_FILE)
    return ", ".join([*([f"{answers:,} answers"] if answers else []), *files])


def _answers(batch: Any) -> int:
    """How many answers a batch of any command holds."""
    match batch:
        case {"rows": list(rows)}:
            return len(rows)
        case {"answers": dict(by_sample)}:  # of a calibration: each sample has one for each setting
            return sum(map(len, by_sample.values()))
        case {"answers": list(traces)}:  # of an analysis: each image has an unsteered and a steered one
            return 2 * len(traces)
    return 0


# Files


def to_json(value: Any) -> str:
    """The text of a JSON file. A value that JSON has no word for, such as NaN, is refused."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """The text of a file with one JSON object per line."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read_json(path: Path, kind: Any = Any) -> Any:
    """Read a JSON file as what [`from_json`] makes of it.

    Raises:
        InputError: It is damaged, or holds something else.
    """
    try:
        return from_json(kind, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def read_result(path: Path, kind: type[Result], formats: Sequence[str], what: str) -> Result:
    """Read a result file whose "format" is one of `formats`, the present one first.

    Raises:
        InputError: It is not `what` it has to be, or is damaged.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") not in formats:
        raise InputError(f"{path} is not {what} ({formats[0]}).")
    try:
        result: Result = from_json(kind, record)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    return result


def read_json_lines(path: Path, kind: Any = Batch) -> list[Any]:
    """Read a file with one JSON object per line, each of the same type for [`from_json`].

    Raises:
        InputError: A line is damaged, or something else.
    """
    return list(_parsed_lines(path, path.read_bytes(), kind, "restore the file"))


def _parsed_lines(path: Path, content: bytes, kind: Any, advice: str) -> Iterator[Any]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                yield from_json(kind, json.loads(line))
            except ValueError as error:
                raise InputError(f"Line {number} of {path} is damaged ({error}): {advice}.") from error


def write_new(path: Path, content: str | bytes) -> bool:
    """Write a whole file, or nothing if it exists: never half a file, never over another one.

    Returns:
        Whether this call wrote it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:
            # No hard links on this file system: a process killed in between can then leave an empty file.
            path.open("x").close()
            os.replace(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def must_write_new(path: Path, content: str | bytes) -> Path:
    """As `write_new`, for a result that the user gave the name of.

    Raises:
        FileExistsError: The file exists.
    """
    if not write_new(path, content):
        raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
    return path


def numbered_path(folder: Path, stem: str, suffix: str = "", first: int = 1) -> Path:
    """The first of `stem-001`, `stem-002`, ... in a folder that does not exist yet."""
    number = first
    while (path := folder / f"{stem}-{number:03d}{suffix}").exists():
        number += 1
    return path
