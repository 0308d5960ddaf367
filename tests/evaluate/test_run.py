"""A run: nothing lost, nothing done twice, and the same answers however the work is cut up."""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rudder_hf import RudderConfig
from rudder_hf.evaluate.result import Result
from rudder_hf.evaluate.run import Run
from rudder_hf.methods import get
from rudder_hf.runtime.environment import Process
from rudder_hf.runtime.errors import InputError
from tests.support.command import refused, rudder, started
from tests.support.evaluating import NEW, SETTINGS, Counting, loaded, run_task, scenes, texts


def scores(folder: Path) -> dict[str, Any]:
    """The result without what differs from run to run."""
    return dataclasses.asdict(dataclasses.replace(Result.load(folder), run={}))


def rows(folder: Path) -> list[tuple[str, str]]:
    """Variant and sample of every stored answer."""
    return [(batch["key"], row["id"]) for batch in Run(folder).batches() for row in batch["rows"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_task(folder) is not None
    return folder


class Stop(Exception):
    pass


def stop_at(after: int) -> Any:
    def stop(text: str, finished: int, total: int) -> None:
        if finished >= after:
            raise Stop

    return stop


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


@pytest.mark.parametrize("after", [2, *(pytest.param(after, marks=pytest.mark.slow) for after in (5, 9))])
def test_another_batch_size_may_continue_and_does_nothing_twice(tmp_path: Path, whole: Path, after: int) -> None:
    with pytest.raises(Stop):
        run_task(tmp_path / "run", progress=stop_at(after))
    done = len(rows(tmp_path / "run"))
    assert 0 < done < 10
    if after == 2:  # there is no finished variant to score
        refused(rudder("score", tmp_path / "run"), "is not finished: repeat its command to continue it")
    seen: list[tuple[int, int]] = []
    run_task(tmp_path / "run", batch_size=3, progress=lambda _, finished, total: seen.append((finished, total)))
    assert (seen[0], seen[-1]) == ((done, 10), (10, 10))
    assert len(rows(tmp_path / "run")) == 10
    assert texts(tmp_path / "run") == texts(whole)
    launches = Result.load(tmp_path / "run").run["launches"]
    assert [launch["batch_size"] for launch in launches] == [2, 3]


def test_a_finished_run_is_left_alone_and_further_variants_are_added(tmp_path: Path) -> None:
    config, again = loaded().settings[""], Counting()
    run_task(tmp_path / "run", methods=[Counting()])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run_task(tmp_path / "run", methods=[again]) is not None
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    other = RudderConfig(**{**SETTINGS, "alpha_max": 3.0})
    steered = [get("rudder-add", config=one) for one in (config, other)]
    result = run_task(tmp_path / "run", methods=[again, *steered])
    assert again.seen == []
    assert result is not None
    assert [m.name for m in result.methods] == ["vanilla", "rudder-add", "rudder-add[alpha_max=3.0]"]
    assert [m.method for m in result.methods] == ["vanilla", "rudder-add", "rudder-add"]
    # A variant alone asks for what is there already; the result still has them all.
    only = run_task(tmp_path / "run", methods=[steered[1]])
    assert only is not None
    assert len(only.methods) == 3


def test_a_folder_of_another_run_is_refused(whole: Path) -> None:
    with pytest.raises(ValueError, match=r'decoding.name is "greedy" there and "nucleus" here'):
        run_task(whole, decoding="nucleus")
    with pytest.raises(ValueError, match="samples is 5 there and 4 here"):
        run_task(whole, scenes(4))


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
        assert {path.name for path in (tmp_path / "run" / "answers").glob("*.jsonl")} == {f"{1 - lost}.jsonl"}
        assert 0 < len(rows(tmp_path / "run")) < 10
        run_task(tmp_path / "run")
    assert len(rows(tmp_path / "run")) == 10
    assert texts(tmp_path / "run") == texts(whole)
    assert scores(tmp_path / "run") == scores(whole)


def test_too_little_memory_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("rudder_hf.evaluate.run.answer_batch", full)
    with pytest.raises(InputError, match="batches of 2: repeat the command with a smaller --batch-size"):
        run_task(tmp_path / "run", batch_size=2)


# The command line, in processes of its own


def command(model: Path, out: Path, *more: str) -> list[str]:
    settings = ["--set", "layer=2", "--set", "alpha_max=12", "--max-new-tokens", str(NEW)]
    return [
        "evaluate", "--model", str(model), "--limit", "12", "--batch-size", "2", "--decoding", "nucleus",
        "--methods", "vanilla,rudder-add", *settings, "--device", "cpu", "--out", str(out), *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_interrupted_killed_and_continued_by_two_processes(tmp_path: Path, tiny_model: Path) -> None:
    """Ctrl-C, then kill -9; two processes of `accelerate launch` do the rest; the same as one process in one go."""
    out = tmp_path / "run"
    file = out / "answers" / "0.jsonl"
    said: list[str] = []
    for least, stop in ((2, signal.SIGINT), (4, signal.SIGKILL)):
        running = started(*command(tiny_model, out))
        deadline = time.monotonic() + 300
        while not (file.exists() and file.read_bytes().count(b"\n") >= least):
            assert time.monotonic() < deadline
            assert running.poll() is None, "it ended before it was stopped"
            time.sleep(0.02)
        running.send_signal(stop)
        said.append(running.communicate(timeout=60)[0])
        assert running.returncode == (130 if stop == signal.SIGINT else -stop)
        assert 0 < len(rows(out)) < 24
    assert f"Interrupted. What is finished is kept in {out}: repeat the command to go on." in said[0]
    assert "Traceback" not in said[0]
    assert not (out / "result.json").exists()

    # With --cpu accelerate starts a single process; --multi_gpu is torchrun, which needs no GPU by itself.
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "rudder_hf"]
    both = started(*launch, *command(tiny_model, out), module=False)
    printed, _ = both.communicate(timeout=600)
    assert both.returncode == 0, printed[-3000:]
    assert len(rows(out)) == len(set(rows(out))) == 24
    assert len(list((out / "answers").glob("*.jsonl"))) == 2

    single = rudder(*command(tiny_model, tmp_path / "single"))
    assert single.exit_code == 0, single.output
    assert texts(out) == texts(tmp_path / "single")
    assert scores(out) == scores(tmp_path / "single")
    assert [launch["processes"] for launch in Result.load(out).run["launches"]] == [1, 1, 2, 2]


def test_tasks_refuse_samples_without_or_with_the_same_id() -> None:
    task = scenes()
    for samples in ([], [task.samples[0]] * 2):
        with pytest.raises(ValueError, match=r"no samples|more than once"):
            dataclasses.replace(task, samples=samples)
