"""The command line: output, exit codes, one-line errors, and a help that is there at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command

from rudder_hf.cli.main import app
from rudder_hf.runtime.store import Store
from tests.support.command import refused, rudder

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
    assert failed.stderr == f"Error: there is no image {tmp_path / 'no.png'}: give a file, a URL or base64\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_shows_at_most_twenty_options_and_ends_with_commands_to_copy(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = rudder(command, "--help").stdout
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    examples = lines[lines.index("Commands to copy:") + 1 :]
    assert examples
    assert all(line.startswith(f"rudder {command}") for line in examples)
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


def test_benchmark_writes_one_file_and_never_overwrites(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.json"
    options = ("benchmark", "--model", tiny_model, "--rounds", 1, "--new-tokens", 2)
    result = rudder(*options, "--out", out)
    assert result.exit_code == 0, result.output
    assert "rudder-beta" in result.stdout
    assert f"Written to {out}" in result.stdout.replace("\n", "")
    record = json.loads(out.read_text())
    assert record["cases"][0]["prompt_tokens"] >= 64
    assert [cost["method"] for cost in record["cases"][0]["costs"]] == ["vanilla", "rudder-beta", "rudder-add"]
    refused(rudder(*options, "--out", out), "never overwritten")
    assert json.loads(out.read_text()) == record


# Bad input is one line, before anything is loaded or written

BAD_INPUT = [
    ("analyze --data .", "neither COCO annotations nor images"),
    ("analyze --set alpha=3 --limit 1", "'alpha' is not a RUDDER setting"),
    ("analyze --set alpha_max=0 --limit 1", "no push to analyze"),
    ("benchmark --methods none", "no method 'none'"),
    ("benchmark --model none", "none"),
    ("calibrate --model none --strengths strong", "--strengths is 'strong'"),
    ("calibrate --model none --strengths 0.3,nan", "the strength nan"),
    ("calibrate --model none --k 5,-1", "`k` is -1"),
    ("calibrate --model none --contrast inf", "`contrast` is inf"),
    ("calibrate --model none --data no/such/folder", "no/such/folder"),
    ("calibrate --model none --recall-floor nan", "recall_floor is nan"),
    ("calibrate --model none --limit 400", "lower --limit"),
    ("calibrate --model none --mode add --contrast 0.4", "--contrast goes with --mode beta"),
    ("calibrate --model none --mode add --k 2", "--k is of the gate"),
    ("compare --decodings contrastive", "greedy, beam, nucleus"),
    ("compare --methods vdc", "Did you mean 'vcd'?"),
    ("evaluate --methods magic", "Methods: vanilla"),
    ("evaluate --methods vanilla,vanilla", "twice"),
    ("evaluate --task chair", "needs --data"),
    ("evaluate --task chair --data nowhere", "nowhere"),
    ("evaluate --data nowhere", "does not use --data"),
    ("evaluate --split train", "train"),
    ("evaluate --set alpha_max", "NAME=VALUE"),
    ("evaluate --set magic.alpha=1", "METHOD.NAME=VALUE"),
    ("evaluate --task mme --data .", "is not MME's folder, which has one folder"),
    ("evaluate --model nowhere/nothing-at-all", "Cannot load"),
    ("evaluate --set alpha=3", "rudder-beta has no setting 'alpha'. Its settings: layer, alpha_max, k, c"),
    ("evaluate --methods vcd --set vcd.alph=3", "vcd has no setting 'alph'. Its settings: alpha"),
    ("evaluate --methods vanilla --set vanilla.k=3", "Its settings: none"),
    ("generate --alpha-max -1", "alpha_max"),
    ("generate --alpha-max nan", "alpha_max"),
    ("generate --set g_min=2", "g_min"),
    ("generate --set alpha=3", "Settings: layer, alpha_max, k"),
    ("generate --set span=left", "'prompt', 'text', 'image'"),
    ("generate --set span", "--set span is no setting: here settings are NAME=VALUE, such as span=text."),
    ("generate --set vcd.alpha=1", "here settings are NAME=VALUE"),
    ("generate --set force=true", "force has no effect here"),
    ("generate --k 2 --set k=3", "k is given twice"),
    ("generate --layer 99", "12 decoder layers"),
    ("generate --device cuda:77", "--device cuda:77"),
    ("generate --device nonsense", "--device nonsense"),
    ("generate --example 99", "1 to 48"),
    ("generate http://127.0.0.1:9/photos//a.png?b=c", "http://127.0.0.1:9/photos//a.png?b=c cannot be read"),
    ("generate photo.png --example 2", "--example is for the examples"),
    ("generate --model no-such-org/no-such-model", "no-such-org/no-such-model"),
    ("generate --model .", "Cannot load"),
    ("generate --model .@v1", "leave out @v1"),
    ("verify --model embedded:none", "embedded"),
]


@pytest.mark.parametrize(("typed", "word"), BAD_INPUT)
def test_bad_input_is_one_line(typed: str, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    command, *_ = typed.split()
    if command == "analyze":
        pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")
    refused(rudder(*typed.split(), *(("--out", "x") if command in IN_FOLDERS else ())), word)
    assert list(tmp_path.iterdir()) == []


# Folders of results: no command writes into that of another one

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


def test_what_was_not_begun_is_not_said_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rudder_hf.evaluate.tasks.make_task", Mock(side_effect=KeyboardInterrupt))
    early = rudder("evaluate", "--out", tmp_path / "run")
    assert (early.exit_code, early.stderr) == (130, "\nInterrupted.\n")
