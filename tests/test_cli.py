"""The command line: output, exit codes, one-line errors, and a help that is there at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from rudder_hf import RudderConfig
from rudder_hf.cli import answers
from rudder_hf.cli.main import app
from rudder_hf.cli.toy import toy_model, toy_processor

COMMANDS = ("generate", "evaluate", "benchmark", "env")


def rudder(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, word: str, code: int = 2) -> None:
    """One line on stderr that has the word in it, nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert word in lines[0]
    assert "Traceback" not in result.stderr


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Two different pictures."""
    paths = [tmp_path / f"{seed}.png" for seed in (1, 2)]
    for seed, path in enumerate(paths):
        answers.synthetic_picture(seed, size=40).save(path)
    return paths


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its processor on disk."""
    path = tmp_path_factory.mktemp("model")
    toy_model(seed=1).save_pretrained(path)
    toy_processor().save_pretrained(path)
    return path


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from rudder_hf.cli.main import app\n"
        "for arguments in ([], ['generate'], ['evaluate'], ['benchmark'], ['env']):\n"
        "    assert CliRunner().invoke(app, [*arguments, '--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_module_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rudder_hf"]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: rudder" in helped.stdout
    failed = subprocess.run([*command, "generate", str(tmp_path / "no.png")], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == f"Error: There is no picture {tmp_path / 'no.png'}.\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_commands_to_copy(command: str) -> None:
    lines = [line.strip() for line in rudder(command, "--help").stdout.splitlines() if line.strip()]
    examples = lines[lines.index("Commands to copy:") + 1 :]
    assert examples
    assert all(line.startswith(f"rudder {command}") for line in examples)


def test_env_as_text_and_json() -> None:
    report = json.loads(rudder("env", "--json").stdout)
    assert {"python", "torch", "transformers", "rudder_hf", "accelerate", "peft", "huggingface_hub"} <= set(
        report["versions"]
    )
    assert {"system", "cpu_count", "accelerators"} <= set(report["hardware"])
    assert f"torch: {report['versions']['torch']}" in rudder("env").stdout


def test_generate_without_anything_says_that_words_mean_nothing() -> None:
    result = rudder("generate", "--max-new-tokens", 6)
    assert result.exit_code == 0, result.output
    for word in ("random weights", "mean nothing", "synthetic picture", "vanilla:", "steered:", "gate", "similarity"):
        assert word in result.stdout


def test_generate_traces_every_token() -> None:
    result = rudder("generate", "--max-new-tokens", 3, "--trace", "--mode", "add", "--alpha-max", 2)
    assert result.exit_code == 0, result.output
    assert "token by token" in result.stdout
    assert result.stdout.count(" % │") == 3


def answer_json(*arguments: object) -> dict[str, Any]:
    result = rudder("generate", "--json", "--max-new-tokens", 6, *arguments)
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_generate_answers_pictures_in_one_batch_as_one_by_one(pictures: list[Path]) -> None:
    both = answer_json(*pictures)["answers"]
    alone = [answer_json(picture)["answers"][0] for picture in pictures]
    assert [answer["image"] for answer in both] == [str(picture) for picture in pictures]
    for batched, single in zip(both, alone, strict=True):
        assert batched["tokens"] == single["tokens"]
        assert batched["vanilla"] == single["vanilla"]
        assert batched["gate"] == pytest.approx(single["gate"], abs=1e-4)
    assert both[0]["tokens"] != both[1]["tokens"]


def test_generate_follows_its_settings(pictures: list[Path]) -> None:
    none = answer_json(pictures[0], "--alpha-max", 0)["answers"][0]
    assert none["steered"] == none["vanilla"]
    assert none["gate"] == [0.0] * 6
    record = answer_json(pictures[0], "--alpha-max", 60, "--k", 2, "--layer", 1, "--steer-first-token")
    assert record["answers"][0]["steered"] != record["answers"][0]["vanilla"]
    assert record["answers"][0]["gate"][0] > 0
    assert {name: record["settings"][name] for name in ("alpha_max", "k", "layer")} == {
        "alpha_max": 60.0,
        "k": 2.0,
        "layer": 1,
    }
    assert "random weights" in record["note"]


def test_generate_with_a_model_on_disk(folder: Path, pictures: list[Path], tmp_path: Path) -> None:
    record = answer_json(pictures[0], "--model", folder, "--layer", 2, "--alpha-max", 5)
    assert record["note"] is None
    RudderConfig(base_model_name_or_path=str(folder), layer=2, alpha_max=5.0).save_pretrained(tmp_path)
    assert answer_json(pictures[0], "--model", tmp_path)["answers"] == record["answers"]
    stronger = answer_json(pictures[0], "--model", tmp_path, "--alpha-max", 50)
    assert stronger["settings"]["alpha_max"] == 50.0


def test_generate_refuses_what_is_no_picture(tmp_path: Path) -> None:
    broken, cut = tmp_path / "broken.png", tmp_path / "cut.png"
    broken.write_bytes(b"not a picture")
    Image.new("RGB", (64, 64), "red").save(cut)
    cut.write_bytes(cut.read_bytes()[:60])
    refused(rudder("generate", tmp_path / "missing.png"), "missing.png")
    refused(rudder("generate", broken), "not a picture")
    refused(rudder("generate", cut), "cut.png")
    refused(rudder("generate", tmp_path), "is a folder")


def test_generate_refuses_unknown_models(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(rudder("generate", "--model", "no-such-org/no-such-model"), "no-such-org/no-such-model")
    refused(rudder("generate", "--model", tmp_path / "no-such-folder"), "no-such-folder")
    refused(rudder("generate", "--model", tmp_path), "Cannot load")
    refused(rudder("generate", "--model", folder), "pass --layer and --alpha-max")


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--alpha-max", -1, "alpha_max"),
        ("--alpha-max", "nan", "alpha_max"),
        ("--g-min", 2, "g_min"),
        ("--layer", 99, "4 decoder layers"),
        ("--device", "cuda:77", "--device cuda:77"),
        ("--device", "nonsense", "--device nonsense"),
    ],
)
def test_generate_refuses_bad_settings(option: str, value: object, word: str) -> None:
    refused(rudder("generate", option, value), word)


def test_a_failure_while_generating_is_told_apart_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(answers, "ask", fail)
    refused(rudder("generate"), "RuntimeError: out of memory", code=1)


def test_benchmark_writes_one_file_and_never_overwrites(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    options = ("benchmark", "--shape", "tiny", "--rounds", 1, "--new-tokens", 2, "--prompt-tokens", 20, "--quick")
    result = rudder(*options, "--out", out)
    assert result.exit_code == 0, result.output
    assert "RUDDER-Beta" in result.stdout
    assert f"Written to {out}" in result.stdout.replace("\n", "")
    record = json.loads(out.read_text())
    assert [variant["variant"] for variant in record["cases"][0]["variants"]] == ["vanilla", "beta", "add"]
    refused(rudder(*options, "--out", out), "never overwritten")
    assert json.loads(out.read_text()) == record


def test_benchmark_of_a_model_on_disk(folder: Path, tmp_path: Path) -> None:
    result = rudder(
        "benchmark", "--model", folder, "--rounds", 1, "--new-tokens", 2, "--prompt-tokens", 40, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "rudder-benchmark-001.json").read_text())
    assert record["cases"][0]["name"] == str(folder)
    assert record["cases"][0]["prompt_tokens"] >= 40


def test_benchmark_refuses_bad_input(tmp_path: Path) -> None:
    tiny = ("benchmark", "--shape", "tiny", "--out", tmp_path)
    refused(rudder(*tiny, "--prompt-tokens", 5), "no room for the picture")
    refused(rudder(*tiny, "--layer", 4), "4 decoder layers")
    refused(rudder("benchmark", "--model", tmp_path / "none", "--out", tmp_path), "none")
    assert rudder("benchmark", "--shape", "square").exit_code == 2
    assert rudder("benchmark", "--rounds", 0).exit_code == 2
    assert list(tmp_path.iterdir()) == []
