"""The results folder: nothing lost, nothing misread, nothing overwritten, and every refusal in words."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.runtime.environment import Process
from rudder_hf.runtime.errors import InputError, from_json
from rudder_hf.runtime.store import (
    Store,
    must_write_new,
    numbered_path,
    read_json_lines,
    write_new,
    write_over,
)


@dataclass(frozen=True)
class Numbered:
    """A batch with a number."""

    n: int


ROOT = Path(__file__).parent.parent.parent
PLAN = {"model": {"name": "tiny", "revision": "a"}, "seed": 0}


def started(path: Path, process: Process | None = None) -> Store:
    store = Store(path, "evaluate", process)
    store.start(PLAN)
    return store


def test_a_new_folder_is_started_and_the_same_work_continues(tmp_path: Path) -> None:
    store = Store(tmp_path / "run", "evaluate")
    assert not store.check()
    store.start(PLAN)
    assert store.check()
    assert started(tmp_path / "run").plan() == PLAN


@pytest.mark.parametrize(
    ("stored", "asked", "words"),
    [
        ({}, {"seed": 1}, "seed is 0 there and 1 here"),
        ({}, {"batch": 3}, "batch is null there and 3 here"),
        ({"data": {"split": "a", "n": 1}}, {"data": {"split": "b", "n": 1}}, 'data.split is "a" there and "b" here'),
        ({"prompt": "x" * 300}, {"prompt": "y"}, r"xxx\.\.\. there"),
    ],
)
def test_other_work_is_refused_with_the_difference(
    tmp_path: Path, stored: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    Store(tmp_path / "run", "evaluate").start({**PLAN, **stored})
    with pytest.raises(
        InputError, match=rf"{tmp_path / 'run'} holds other work \(.*{words}.*\)\. Choose a new folder"
    ):
        Store(tmp_path / "run", "evaluate").start({**PLAN, **stored, **asked})


def test_other_folders_and_files_are_refused(tmp_path: Path) -> None:
    started(tmp_path / "run")
    with pytest.raises(InputError, match="belongs to rudder evaluate, not to calibrate: choose another folder"):
        Store(tmp_path / "run", "calibrate").check()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty .*notes\.txt"):
        Store(tmp_path, "evaluate").check()
    with pytest.raises(InputError, match="is a file"):
        Store(tmp_path / "notes.txt", "evaluate").check()
    with pytest.raises(InputError, match=r"notes\.txt is a file"):
        Store(tmp_path / "notes.txt" / "run", "evaluate").check()
    with pytest.raises(InputError, match="is no results folder of rudder evaluate"):
        Store(tmp_path / "nothing", "evaluate").plan()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", r"plan\.json is damaged"),
        ('{"model": "tiny"}', r"another version \(format None, not 3"),
        ("[]", r"plan\.json is damaged: it is .*, but has to be an object"),
        ('{"command": "evaluate", "format": 3, "plan": []}', r"damaged: its plan is no object"),
        ('{"command": "evaluate", "format": 2, "plan": {}}', r"of another version \(format 2, not 3\)"),
    ],
)
def test_damaged_and_older_plans_are_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InputError, match=words):
        Store(tmp_path, "evaluate").start(PLAN)


# Folders that cannot be written

UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
needs_permissions = pytest.mark.skipif(
    bool(UNPRIVILEGED) and shutil.which("setpriv") is None, reason="root may write anywhere, and there is no setpriv"
)
READ_ONLY = """
import sys
from rudder_hf.runtime.store import Store
store = Store(sys.argv[1], "evaluate")
print(store.check())
store.start({"seed": 0})
print(list(store.batches()))
with store:
    store.append({"n": 2})
"""


@pytest.mark.slow
@needs_permissions
@pytest.mark.parametrize("finished", [False, True, None])
def test_a_read_only_folder_is_refused_at_once_unless_it_is_finished(tmp_path: Path, finished: bool | None) -> None:
    run = tmp_path / "run"
    store = Store(run, "evaluate")
    store.start({"seed": 0})
    with store:
        store.append({"n": 1})
    if finished:
        write_over(run / "result.json", "{}")
    places = [run, *run.rglob("*")]
    for place in places:
        place.chmod(0o555)
    target = run / "new" if finished is None else run
    command = [*UNPRIVILEGED, sys.executable, "-c", READ_ONLY, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    for place in places:
        place.chmod(0o755)
    shown = ["True", "[{'n': 1}]"] if finished else []
    assert done.stdout.splitlines() == shown
    refused = f"{run / 'answers'} cannot be written (Permission denied). What is finished is kept" if finished else run
    assert f"InputError: {refused}" in done.stderr


def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the last line is torn where it ends."""
    run = started(tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = 0
    words = (
        re.escape(str(tmp_path / "run" / "answers")) + r" cannot be written \(.*\)\. What is finished is kept: .*room"
    )

    def fill() -> None:
        nonlocal kept
        for kept in range(100):
            run.append({"n": kept, "text": "x" * 100})

    with run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(InputError, match=words):
                fill()
            with pytest.raises(InputError, match=r"table\.md cannot be written"):
                write_over(tmp_path / "run" / "table.md", "x" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept > 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["answers", "plan.json"]
    with started(tmp_path / "run") as again:
        again.append({"n": kept})
    assert [batch["n"] for batch in again.batches()] == [*range(kept), kept]


def test_batches_of_all_processes_are_read_in_order(tmp_path: Path) -> None:
    for rank in (1, 0):
        with started(tmp_path / "run", Process(rank, 2)) as store:
            for number in range(2):
                store.append({"rank": rank, "number": number, "text": "é"})
    found = [(batch["rank"], batch["number"]) for batch in started(tmp_path / "run").batches()]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_torn_line_is_left_out_and_cut_off(tmp_path: Path) -> None:
    with started(tmp_path / "run") as store:
        store.append({"n": 1})
        store.append({"n": 2})
    path = tmp_path / "run" / "answers" / "0.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    assert list(store.batches()) == [{"n": 1}]
    with started(tmp_path / "run") as store:
        store.append({"n": 3})
    assert path.read_text() == '{"n": 1}\n{"n": 3}\n'


@pytest.mark.parametrize("line", ['{"n"', "null", "[]", "3", '{"n": "two"}', "{}"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run" / "answers" / "0.jsonl"
    store = started(tmp_path / "run")
    path.parent.mkdir()
    path.write_text(f'{{"n": 1}}\n{line}\n{{"n": 3}}\n')
    with pytest.raises(InputError, match=r"Line 2 of .*0\.jsonl is damaged .*remove the line"):
        list(store.batches(dict[str, int] if line != "{}" else Numbered))


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path, "evaluate"), pytest.raises(BlockingIOError, match="Another run is writing"):
        Store(tmp_path, "evaluate").__enter__()
    # A process of an earlier, larger run counts too; a sibling of this run does not.
    with Store(tmp_path, "evaluate", Process(1, 2)):
        with pytest.raises(BlockingIOError, match="Another run is writing"):
            Store(tmp_path, "evaluate").__enter__()
        with Store(tmp_path, "evaluate", Process(0, 2)):
            pass
    with Store(tmp_path, "evaluate"):
        pass


def test_waiting_ends_when_the_others_are_done_or_nothing_comes(tmp_path: Path) -> None:
    store, other = (started(tmp_path / "run", Process(rank, 2)) for rank in (0, 1))

    def missing() -> int:
        return 1 - len(list(store.batches()))

    with pytest.raises(RuntimeError, match="nothing has come for 0 s: repeat the command"):
        store.wait(missing, patience=0)
    with other:
        later = threading.Timer(0.2, other.append, ({"n": 1},))
        later.start()
        store.wait(missing)
        later.join()


def test_files_are_written_once_and_whole(tmp_path: Path) -> None:
    assert write_new(tmp_path / "a" / "file", "one")
    assert not write_new(tmp_path / "a" / "file", b"two")
    assert (tmp_path / "a" / "file").read_text() == "one"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    with pytest.raises(FileExistsError, match="never overwritten"):
        must_write_new(tmp_path / "a" / "file", "two")
    assert write_new(tmp_path / "tensor", b"\x00\xff")
    assert (tmp_path / "tensor").read_bytes() == b"\x00\xff"


def test_lines_of_json_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [{"text": "line\u2028break"}, {"n": 1}]
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    assert read_json_lines(path) == records
    path.write_text(path.read_text().rstrip("\n"))
    assert (read_json_lines(path), read_json_lines(path, torn=True)) == (records, records[:1])


def test_results_are_numbered(tmp_path: Path) -> None:
    assert numbered_path(tmp_path, "result", ".json").name == "result-001.json"
    (tmp_path / "result-001").mkdir()
    assert numbered_path(tmp_path, "result").name == "result-002"


# JSON as the types that it was written from: what fits comes back as it was, what does not is named by its place


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    name: str
    at: tuple[float, float]
    weight: float | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Drawing:
    """A dataclass of others."""

    points: dict[str, list[Point]]
    closed: bool
    more: Any = None


DRAWING = Drawing({"a": [Point("p", (1, 2.5)), Point("q", (0.0, 1.0), 2.0, ["x"])], "b": []}, True, {"any": [1]})


def test_what_was_written_is_read_back() -> None:
    written = json.loads(json.dumps(asdict(DRAWING)))
    assert from_json(Drawing, written) == DRAWING
    assert from_json(dict[str, Drawing], {"drawing": written}) == {"drawing": DRAWING}
    assert from_json(Point, {"name": "p", "at": [1, 2.5]}) == Point("p", (1, 2.5))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Point, None, "it is null, but has to be an object"),
        (dict[str, Drawing], {"drawing": {}}, "drawing lacks points, closed"),
        (dict[str, int], {"size": True}, "size is true, but has to be a whole number"),
        (Point, {"name": "p", "at": [1]}, r"at is \[1\], but has to be a list of 2"),
        (Point, {"name": "p", "at": [1, 2], "weight": "3"}, 'weight is "3", but has to be a number'),
        (Point, {"name": "p", "at": [1, 2], "tags": ["x", 3]}, r"tags\[1\] is 3, but has to be a text"),
        (Point, {"name": "p", "at": [1, 2], "y": 3, "x": 3}, "it has x, y, which is not known"),
        (Drawing, {"points": {"a": {}}, "closed": True}, "points.a is {}, but has to be a list"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(kind, value)
