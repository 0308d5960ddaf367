"""Finished batches on disk: one line per batch, forced to the disk before the next begins.

A run killed at any moment has lost at most the batch it was working on. Each process writes a file of its own; what is
done is the union of all files. A line that was torn by a kill is cut off by the process that continues its file, and
its batch is done again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

Batch = dict[str, Any]


class Journal:
    """The finished batches of one results folder.

    Args:
        folder: Where the files of all processes are.
        rank: Of this process.
        count: How many processes take part.
    """

    def __init__(self, folder: Path, rank: int = 0, count: int = 1) -> None:
        self.folder, self.rank, self.count = folder, rank, count
        self.path = folder / f"answers-{rank:04d}.jsonl"
        self._lock = FileLock(f"{self.path}.lock")
        self._file: Any = None

    def __enter__(self) -> Journal:
        """Take the file, so that no second run writes to it, and cut off a torn line.

        Raises:
            BlockingIOError: Another run is at work in this folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._acquire(self._lock)
        try:
            # Processes of an earlier, larger run may still be at work.
            for path in sorted(self.folder.glob("answers-*.jsonl.lock")):
                if int(path.name[8:12]) >= self.count:
                    lock = FileLock(path)
                    self._acquire(lock)
                    lock.release()
            whole = _whole_length(self.path)
            self._file = self.path.open("ab")
            if whole != self._file.tell():
                self._file.truncate(whole)
        except BaseException:
            self._lock.release()
            raise
        return self

    def _acquire(self, lock: FileLock) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(
                f"Another run is writing to {self.folder.parent}: wait for it, or choose another folder."
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._lock.release()

    def append(self, batch: Batch) -> None:
        """Add a finished batch; it is on the disk when this returns."""
        line = json.dumps(batch, ensure_ascii=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def read_batches(folder: Path) -> Iterator[Batch]:
    """All finished batches of all processes; torn lines are left out.

    Raises:
        ValueError: A line in the middle of a file is damaged.
    """
    for path in sorted(folder.glob("answers-*.jsonl")):
        content = path.read_bytes()[: _whole_length(path)]
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                batch = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"Line {number} of {path} is damaged ({error}): remove the line to do its batch again."
                ) from error
            yield batch


def _whole_length(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def write_new(path: Path, text: str) -> bool:
    """Write a whole file, or nothing if it exists: never half a file, never over another one.

    Returns:
        Whether this call wrote it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return _publish(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _publish(draft: Path, path: Path) -> bool:
    """Give a finished draft its name, unless the name is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        # No hard links on this file system: a process killed in between can then leave an empty file.
        try:
            path.open("x").close()
        except FileExistsError:
            return False
        os.replace(draft, path)
    return True
