"""The command line: output, exit codes, one-line errors, and a help that is there at once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command

from rudder_hf.cli.main import app
from rudder_hf.runtime.store import Store
from tests.support.command import refused, rudder, started

ROOT = Path(__file__).parent.parent.parent
COMMANDS = [str(command.name) for command in app.registered_commands]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_does_not_import_torch(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rudder_hf", *arguments, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "transformers", "numpy"}


def test_module_runs_as_a_program(tmp_path: Path) -> None:
    for options in (["-um", "rudder_hf"], ["-mrudder_hf"], ["-m", "rudder_hf"]):
        command = [sys.executable, *options]
        helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
        assert "Usage: rudder" in helped.stdout
    failed = subprocess.run([*command, "generate", str(tmp_path / "no.png")], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == f"Error: there is no image {tmp_path / 'no.png'}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_commands_to_copy(command: str) -> None:
    lines = [line.strip() for line in rudder(command, "--help").stdout.splitlines() if line.strip()]
    examples = lines[lines.index("Commands to copy:") + 1 :]
    assert examples
    assert all(line.startswith(f"rudder {command}") for line in examples)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_shows_at_most_twenty_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = rudder(command, "--help").stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    parameters = options_of(command)
    assert {name for names in parameters.values() for name in names} <= set(re.findall(r"--[a-z][a-z-]*", shown))
    assert len(parameters) <= 20


def options_of(command: str) -> dict[str, list[str]]:
    """The options of a command by the names of its parameters."""
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {p.name: [*p.opts, *p.secondary_opts] for p in parameters if p.param_type_name == "option"}


def test_the_same_parameter_is_the_same_option_everywhere() -> None:
    found: dict[str, set[tuple[str, ...]]] = {}
    for command in COMMANDS:
        for name, names in options_of(command).items():
            found.setdefault(name, set()).add(tuple(names))
    assert {name: names for name, names in found.items() if len(names) > 1} == {}
    # One word for one thing.
    assert not {"pictures", "num_images", "batch", "output", "output_dir", "torch_dtype", "random_seed"} & found.keys()


def test_commands_in_the_pages_have_options_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    texts |= {f"help of {name}": rudder(name, "--help").stdout for name in COMMANDS}
    wrong, seen = [], 0
    for page, text in texts.items():
        lines = text.replace("\\\n", " ").replace(", or ", "\n")
        for command, rest in re.findall(r"\brudder (\w+)((?: [^\n`#|]+)?)", lines):
            if command not in COMMANDS:
                continue
            known = {"--help", *(name for names in options_of(command).values() for name in names)}
            given = set(re.findall(r"(?<= )--[a-z][a-z-]*", rest))
            seen += len(given)
            wrong += [f"{page}: rudder {command} {name}" for name in given - known]
    assert wrong == []
    assert seen > 50


def test_env_as_text_and_json() -> None:
    report = json.loads(rudder("env", "--json").stdout)
    assert {"python", "torch", "transformers", "rudder_hf", "accelerate", "peft", "huggingface_hub"} <= set(
        report["versions"]
    )
    assert {"system", "cpu_count", "accelerators"} <= set(report["hardware"])
    lines = rudder("env").stdout.splitlines()
    assert f"torch: {report['versions']['torch']}" in lines
    assert lines[-1].startswith("Next: rudder verify")


def test_benchmark_writes_one_file_and_never_overwrites(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.json"
    options = ("benchmark", "--model", folder, "--rounds", 1, "--new-tokens", 2)
    result = rudder(*options, "--out", out)
    assert result.exit_code == 0, result.output
    assert "rudder-beta" in result.stdout
    assert f"Written to {out}" in result.stdout.replace("\n", "")
    record = json.loads(out.read_text())
    assert record["cases"][0]["prompt_tokens"] >= 64
    assert [cost["method"] for cost in record["cases"][0]["costs"]] == ["vanilla", "rudder-beta", "rudder-add"]
    refused(rudder(*options, "--out", out), "never overwritten")
    assert json.loads(out.read_text()) == record


def test_benchmark_refuses_bad_input(folder: Path, tmp_path: Path) -> None:
    refused(rudder("benchmark", "--model", folder, "--out", tmp_path / "a.json", "--methods", "none"), "none")
    refused(rudder("benchmark", "--model", tmp_path / "none"), "none")
    assert rudder("benchmark", "--rounds", 0).exit_code == 2
    assert list(tmp_path.iterdir()) == []


# Folders of results: no command writes into that of another one, and an interrupted one goes on in its own

IN_FOLDERS = ("evaluate", "calibrate", "compare", "analyze")
OTHERS = {name: "evaluate" if name == "analyze" else "analyze" for name in IN_FOLDERS}


@pytest.mark.parametrize("mine", IN_FOLDERS)
def test_the_folder_of_another_command_or_version_is_refused(mine: str, tmp_path: Path) -> None:
    Store(tmp_path, OTHERS[mine]).start({"model": {"name": "tiny"}, "seed": 0})
    before = sorted(tmp_path.rglob("*"))
    # There is no such model: the folder is looked at before anything large is loaded.
    refused(rudder(mine, "--model", tmp_path / "no-model", "--out", tmp_path), str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "plan.json").write_text('{"format": 2, "command": "evaluate", "plan": {}}')
    result = rudder(mine, "--model", tmp_path / "no-model", "--out", tmp_path)
    refused(result, "earlier version" if mine in ("calibrate", "compare") else "another version (format 2")


def test_files_of_costs_have_no_place_in_the_folder_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Store(run, "evaluate").start({"model": {"name": "tiny"}})
    refused(rudder("benchmark", "--out", run / "costs.json"), f"{run} holds a run")
    assert [path.name for path in run.iterdir()] == ["plan.json"]
    (tmp_path / "costs.json").write_text("{}")
    refused(rudder("evaluate", "--out", tmp_path), "(costs.json, run): choose a new folder.")


@pytest.mark.slow
def test_an_interrupted_evaluation_says_how_to_go_on_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("rudder_hf.evaluate.tasks.make_task", Mock(side_effect=KeyboardInterrupt))
        early = rudder("evaluate", "--out", out)
    assert early.exit_code == 130
    assert early.stderr == "\nInterrupted.\n"
    assert not out.exists()
    arguments = ("evaluate", "--limit", "40", "--batch-size", "2", "--methods", "vanilla", "--out")
    process = started(*arguments, out)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 2000 for path in out.glob("answers/*.jsonl")):
        assert process.poll() is None, "it ended before it was interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Interrupted. What is finished is kept in {out}: repeat the command to go on." in said
    assert "Traceback" not in said
    assert not (out / "result.json").exists()
    assert started(*arguments, out).wait(timeout=300) == 0
    assert (out / "result.json").exists()
