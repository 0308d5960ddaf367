"""The results folder: nothing lost, nothing misread, nothing overwritten, and every refusal in words."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pytest

from rudder_hf.metrics.errors import InputError
from rudder_hf.runtime.environment import Process
from rudder_hf.runtime.records import from_json
from rudder_hf.runtime.store import (
    Store,
    must_write_new,
    numbered_path,
    read_json,
    read_json_lines,
    to_json_lines,
    write_new,
)


class Numbered(TypedDict):
    """A batch with a number."""

    n: int


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


def test_other_work_is_refused_with_the_difference(tmp_path: Path) -> None:
    started(tmp_path / "run")
    with pytest.raises(InputError) as refusal:
        Store(tmp_path / "run", "evaluate").start({**PLAN, "seed": 1})
    assert str(refusal.value) == (
        f"{tmp_path / 'run'} holds an evaluation of tiny with seed 0; this command has seed 1. Choose a new folder, "
        "or repeat the command of that run to continue it."
    )


HASH, OTHER_HASH = "0123456789abcdef", "fedcba9876543210"


@pytest.mark.parametrize(
    ("stored", "asked", "words"),
    [
        ({}, {"batch": 3}, "with no batch; this command has batch 3."),
        ({"everywhere": True}, {"everywhere": False}, "with everywhere; this command has no everywhere."),
        ({"options": {"limit": 3}}, {"options": {"limit": 2}}, "with limit 3; this command has limit 2."),
        # Methods and their settings.
        ({"methods": {"a": {"k": 1}}}, {"methods": {"a": {"k": 2}}}, "with methods.a.k 1; this command has methods.a"),
        (
            {"methods": {"a": {"k": 1}}},
            {"methods": {"b": {}}},
            "with methods.a, no methods.b; this command has no methods.a, methods.b.",
        ),
        # What follows from another difference, and says nothing to a reader, is left out.
        ({"seed": 0, "data": HASH}, {"seed": 1, "data": OTHER_HASH}, "tiny with seed 0; this command has seed 1."),
        ({"data": {"sha256": HASH}}, {"data": {"sha256": OTHER_HASH}}, "tiny; this command has other data.sha256."),
        ({"ids": [1, 2, 3, 4]}, {"ids": [1, 2, 3, 5]}, "tiny; this command has other 4 ids."),
        ({"ids": [1, 2, 3, 4]}, {"ids": [1, 2, 3, 4, 5]}, "tiny with 4 ids; this command has 5 ids."),
        # Another model has other everything.
        (
            {"model": {"name": "tiny", "revision": HASH, "parameters": 3}},
            {"model": {"name": "large", "revision": OTHER_HASH, "parameters": 4}},
            'an evaluation of tiny; this command has model.name "large".',
        ),
        (
            {"model": {"name": "tiny", "revision": f"files-sha256:{HASH}"}},
            {"model": {"name": "tiny", "revision": f"files-sha256:{OTHER_HASH}"}},
            "an evaluation of tiny; this command has other model.revision.",
        ),
    ],
)
def test_the_difference_is_said_in_words(
    tmp_path: Path, stored: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    Store(tmp_path / "run", "evaluate").start({**PLAN, **stored})
    with pytest.raises(InputError) as refusal:
        Store(tmp_path / "run", "evaluate").start({**PLAN, **asked})
    assert words in str(refusal.value)
    assert HASH not in str(refusal.value)


def test_a_folder_of_another_command_is_refused(tmp_path: Path) -> None:
    started(tmp_path / "run")
    with pytest.raises(InputError, match="holds an evaluation of tiny, not a calibration: choose another folder"):
        Store(tmp_path / "run", "calibrate").check()


@pytest.mark.parametrize("name", ["run.json", "analysis.json", "state/plan.json", "plan.json"])
def test_a_folder_of_version_0_1_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"model": "tiny"}')
    for use in (Store.check, Store.plan, lambda store: store.start(PLAN)):
        with pytest.raises(InputError, match=r"nothing that this version|has format None|has no plan\.json"):
            use(Store(tmp_path, "evaluate"))


def test_other_folders_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty .*notes\.txt"):
        Store(tmp_path, "evaluate").check()
    with pytest.raises(InputError, match="is a file"):
        Store(tmp_path / "notes.txt", "evaluate").check()
    with pytest.raises(InputError, match=r"notes\.txt is a file"):
        Store(tmp_path / "notes.txt" / "run", "evaluate").check()
    with pytest.raises(InputError, match="is no results folder of rudder evaluate"):
        Store(tmp_path / "nothing", "evaluate").plan()


def test_damaged_and_newer_plans_are_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match=r"plan\.json is damaged"):
        Store(tmp_path, "evaluate").check()
    for content in ("[]", "null", '"plan"'):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(InputError, match=r"plan\.json is damaged: it is .*, but has to be an object"):
            Store(tmp_path, "evaluate").check()
    (tmp_path / "plan.json").write_text('{"command": "evaluate", "format": 2, "plan": []}')
    with pytest.raises(InputError, match=r"plan\.json is damaged: plan is \[\], but has to be an object"):
        Store(tmp_path, "evaluate").check()
    (tmp_path / "plan.json").write_text('{"command": "evaluate", "format": 3, "plan": {}}')
    with pytest.raises(InputError, match="has format 3 and this version reads format 2"):
        Store(tmp_path, "evaluate").check()


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
    path = tmp_path / "run" / "batches" / "process-0000.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    assert list(store.batches()) == [{"n": 1}]
    with started(tmp_path / "run") as store:
        store.append({"n": 3})
    assert path.read_text() == '{"n": 1}\n{"n": 3}\n'


@pytest.mark.parametrize("line", ['{"n"', "null", "[]", "3", '{"n": "two"}', "{}"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run" / "batches" / "process-0000.jsonl"
    store = started(tmp_path / "run")
    path.parent.mkdir()
    path.write_text(f'{{"n": 1}}\n{line}\n{{"n": 3}}\n')
    with pytest.raises(InputError, match=r"Line 2 of .*process-0000\.jsonl is damaged .*remove the line"):
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
    with pytest.raises(RuntimeError, match="no other process"):
        started(tmp_path / "run").wait(lambda: 1)


def test_files_are_written_once_and_whole(tmp_path: Path) -> None:
    assert write_new(tmp_path / "a" / "file", "one")
    assert not write_new(tmp_path / "a" / "file", b"two")
    assert (tmp_path / "a" / "file").read_text() == "one"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    with pytest.raises(FileExistsError, match="never overwritten"):
        must_write_new(tmp_path / "a" / "file", "two")
    assert write_new(tmp_path / "tensor", b"\x00\xff")
    assert (tmp_path / "tensor").read_bytes() == b"\x00\xff"


def test_json_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [{"text": "line\u2028break"}, {"n": 1}]
    path.write_text(to_json_lines(records))
    assert read_json_lines(path) == records
    path.write_text(json.dumps({"n": 1}) + "\n{\n")
    with pytest.raises(InputError, match=r"Line 2 of .*x\.jsonl is damaged"):
        read_json_lines(path)
    with pytest.raises(InputError, match=r"x\.jsonl is damaged"):
        read_json(path)


def test_numbered_names(tmp_path: Path) -> None:
    assert numbered_path(tmp_path, "result", ".json", first=2).name == "result-002.json"
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


class Options(TypedDict, total=False):
    """A dictionary whose keys may be absent."""

    size: int


class Job(Options):
    """A dictionary with a key that may not."""

    drawing: Drawing


DRAWING = Drawing({"a": [Point("p", (1, 2.5)), Point("q", (0.0, 1.0), 2.0, ["x"])], "b": []}, True, {"any": [1]})


def test_what_was_written_is_read_back() -> None:
    written = json.loads(json.dumps(asdict(DRAWING)))
    assert from_json(Drawing, written) == DRAWING
    assert from_json(Job, {"drawing": written, "else": 1}) == {"drawing": DRAWING, "else": 1}
    assert from_json(Point, {"name": "p", "at": [1, 2.5]}) == Point("p", (1, 2.5))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Job, None, "it is null, but has to be an object"),
        (Job, {"drawing": {}}, "drawing lacks points, closed"),
        (Job, {"size": "3"}, "it lacks drawing"),
        (Options, {"size": True}, "size is true, but has to be a whole number"),
        (Point, {"name": "p", "at": [1]}, r"at is \[1\], but has to be a list of 2"),
        (Point, {"name": "p", "at": [1, 2], "weight": "3"}, 'weight is "3", but has to be a number or null'),
        (Point, {"name": "p", "at": [1, 2], "tags": ["x", 3]}, r"tags\[1\] is 3, but has to be a text"),
        (Point, {"name": "p", "at": [1, 2], "y": 3, "x": 3}, "it has x, y, which is not known"),
        (Drawing, {"points": {"a": {}}, "closed": True}, "points.a is {}, but has to be a list"),
        (Drawing, {"points": {}, "closed": None}, "closed is null, but has to be true or false"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(kind, value)
