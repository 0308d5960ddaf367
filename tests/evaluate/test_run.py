"""A run: nothing lost, nothing done twice, and the same answers however the work is cut up."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.evaluate.folder import RunFolder
from rudder_hf.evaluate.result import EvaluationResult
from rudder_hf.evaluate.tasks import Task
from rudder_hf.runtime.environment import Process
from tests.support.evaluating import NEW, Counting, loaded, run_task, scenes

ROOT = Path(__file__).parent.parent.parent


def answers(folder: Path) -> bytes:
    return (folder / "samples.jsonl").read_bytes()


def scores(folder: Path) -> dict[str, Any]:
    """The result without what differs from run to run."""
    record = dataclasses.asdict(EvaluationResult.load(folder))
    record.pop("run")
    return record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_task(folder) is not None
    return folder


def texts(folder: Path) -> list[tuple[str, str, str]]:
    rows = [json.loads(line) for line in answers(folder).decode().splitlines()]
    return [(row["method"], row["id"], row["answer"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("decoding", ["greedy", "beam", "nucleus"])
def test_batch_size_and_order_do_not_change_an_answer(tmp_path: Path, decoding: str) -> None:
    run_task(tmp_path / "one", decoding=decoding, batch_size=1)
    run_task(tmp_path / "four", decoding=decoding, batch_size=4)
    backwards = scenes()
    backwards.samples.reverse()
    run_task(tmp_path / "backwards", backwards, decoding=decoding, batch_size=3)
    alone = texts(tmp_path / "one")
    assert texts(tmp_path / "four") == alone
    assert sorted(texts(tmp_path / "backwards")) == sorted(alone)
    assert len({answer for *_, answer in alone}) > 2


def test_sampling_depends_on_the_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        run_task(tmp_path / str(seed), methods=[Counting()], decoding="nucleus", seed=seed, batch_size=5)
    assert texts(tmp_path / "0") != texts(tmp_path / "1")


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("after", [2, 5, 9])
def test_an_interrupted_run_goes_on_and_does_nothing_twice(tmp_path: Path, whole: Path, after: int) -> None:
    def stop(text: str, finished: int, total: int) -> None:
        if finished >= after:
            raise Stop

    with pytest.raises(Stop):
        run_task(tmp_path / "run", progress=stop)
    done = [row["id"] for batch in RunFolder(tmp_path / "run").batches() for row in batch["rows"]]
    assert 0 < len(done) < 10
    seen: list[tuple[int, int]] = []
    run_task(tmp_path / "run", progress=lambda _, finished, total: seen.append((finished, total)))
    assert seen[0] == (len(done), 10)
    batches = [batch for batch in RunFolder(tmp_path / "run").batches() if batch["rows"]]
    assert sum(len(batch["rows"]) for batch in batches) == 10
    assert answers(tmp_path / "run") == answers(whole)
    assert scores(tmp_path / "run") == scores(whole)


@pytest.mark.slow
def test_a_torn_line_is_done_again_and_the_others_are_not(tmp_path: Path) -> None:
    first = Counting()
    run_task(tmp_path / "whole", methods=[first])
    journal = tmp_path / "torn" / "batches" / "process-0000.jsonl"

    def stop(text: str, finished: int, total: int) -> None:
        if finished == 4:
            raise Stop

    with pytest.raises(Stop):
        run_task(tmp_path / "torn", methods=[Counting()], progress=stop)
    journal.write_bytes(journal.read_bytes()[:-9])
    again = Counting()
    run_task(tmp_path / "torn", methods=[again])
    assert again.seen == first.seen[2:]
    assert answers(tmp_path / "torn") == answers(tmp_path / "whole")


def test_another_batch_size_may_continue(tmp_path: Path, whole: Path) -> None:
    def stop(text: str, finished: int, total: int) -> None:
        if finished == 2:
            raise Stop

    with pytest.raises(Stop):
        run_task(tmp_path / "run", progress=stop)
    run_task(tmp_path / "run", batch_size=3)
    assert texts(tmp_path / "run") == texts(whole)
    launches = EvaluationResult.load(tmp_path / "run").run["launches"]
    assert [launch["batch_size"] for launch in launches] == [2, 3]


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    run_task(tmp_path / "run", methods=[Counting()])
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = Counting()
    result = run_task(tmp_path / "run", methods=[again])
    assert again.seen == []
    assert result is not None
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_folder_of_another_run_is_refused(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(ValueError, match=r'with decoding.name "greedy".*; this command has decoding.name "nucleus"'):
        run_task(whole, decoding="nucleus")
    with pytest.raises(ValueError, match=r"with samples 5; this command has samples 4"):
        run_task(whole, scenes(4))
    with pytest.raises(ValueError, match=r"with methods.rudder-add; this command has no methods.rudder-add"):
        run_task(whole, methods=[Counting()])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"not empty .*notes\.txt"):
        run_task(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        run_task(tmp_path / "notes.txt")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, None])
def test_processes_share_the_work_and_a_lost_one_loses_nothing(tmp_path: Path, whole: Path, lost: int | None) -> None:
    for rank in (0, 1):
        if rank != lost:
            result = run_task(tmp_path / "run", process=Process(rank, 2, rank))
            # The last one writes the result.
            assert (result is None) == (rank == 0 or lost is not None)
    if lost is not None:
        assert not (tmp_path / "run" / "result.json").exists()
        shares = {path.name for path in (tmp_path / "run" / "batches").glob("*.jsonl")}
        assert shares == {f"process-000{1 - lost}.jsonl"}
        kept = sum(len(batch["rows"]) for batch in RunFolder(tmp_path / "run").batches())
        run_task(tmp_path / "run")
        later = sum(len(batch["rows"]) for batch in RunFolder(tmp_path / "run").batches())
        assert (0 < kept < 10, later) == (True, 10)
    assert answers(tmp_path / "run") == answers(whole)
    assert scores(tmp_path / "run") == scores(whole)


# The command line, in processes of its own


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    loaded().model.save_pretrained(folder)
    loaded().processor.save_pretrained(folder)
    return folder


def command(model: Path, out: Path, *more: str) -> list[str]:
    settings = ["--set", "layer=2", "--set", "alpha_max=12", "--bootstrap", "200", "--max-new-tokens", str(NEW)]
    return [
        "evaluate", "--model", str(model), "--limit", "12", "--batch-size", "2", "--decoding", "nucleus",
        "--methods", "vanilla,rudder-add", *settings, "--device", "cpu", "--out", str(out), *more,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_killed_and_continued_by_two_processes(tmp_path: Path, model: Path) -> None:
    """kill -9 while it runs; two processes of `accelerate launch` do the rest; the same as one process in one go."""
    python = [sys.executable, "-m", "rudder_hf"]
    out = tmp_path / "run"
    running = subprocess.Popen(
        [*python, *command(model, out)], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = out / "batches" / "process-0000.jsonl"
    deadline = time.monotonic() + 300
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = [row["id"] for batch in RunFolder(out).batches() for row in batch["rows"]]
    assert 0 < len(kept) < 24

    # With --cpu accelerate starts a single process; --multi_gpu is torchrun, which needs no GPU by itself.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "rudder_hf"]
    done = subprocess.run(
        [*launch, *command(model, out)], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [(b["method"], row["id"]) for b in RunFolder(out).batches() for row in b["rows"]]
    assert len(rows) == len(set(rows)) == 24
    assert len(list((out / "batches").glob("*.jsonl"))) == 2

    from typer.testing import CliRunner

    from rudder_hf.cli.main import app

    single = CliRunner().invoke(app, command(model, tmp_path / "single"))
    assert single.exit_code == 0, single.output
    assert answers(out) == answers(tmp_path / "single")
    assert scores(out) == scores(tmp_path / "single")
    launches = EvaluationResult.load(out).run["launches"]
    assert [launch["processes"] for launch in launches] == [1, 2, 2]


def test_tasks_refuse_samples_without_or_with_the_same_id() -> None:
    task = scenes()
    for samples in ([], [task.samples[0]] * 2):
        with pytest.raises(ValueError, match=r"no samples|more than once"):
            dataclasses.replace(task, samples=samples)
    assert isinstance(task, Task)
