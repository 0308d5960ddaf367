"""The page on serving: its commands are understood by the programs that they name, and machines share a run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from accelerate.commands.launch import launch_command_parser

from rudder_hf.cli.main import app
from tests.support.evaluating import loaded
from tests.support.serving import FOLDER, PAGE, free_port, page_commands, with_package

LAUNCHED = [command for command in page_commands() if command.split()[0] in ("rudder", "accelerate", "srun")]


def parse(words: list[str]) -> None:
    """Read the arguments of `rudder ...` as the command line does, without running it."""
    commands: Any = typer.main.get_command(app)
    commands.commands[words[0]].make_context(words[0], words[1:])


def test_there_are_commands_to_check() -> None:
    programs = {command.split()[0] for command in page_commands()}
    assert programs == {"python", "pip", "transformers", "accelerate", "srun"}
    assert len(LAUNCHED) == 3


@pytest.mark.parametrize("command", LAUNCHED)
def test_commands_are_understood(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "accelerate":
        given = launch_command_parser().parse_args(words[2:])
        assert given.module
        assert given.multi_gpu
        assert given.num_processes % (given.num_machines or 1) == 0
        assert given.training_script == "rudder_hf"
        parse(given.training_script_args)
    elif words[0] == "srun":
        shell = shlex.split(words[-1])
        assert [word.split("=")[0] for word in shell[:3]] == ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
        parse(shell[4:])
    elif words[0] == "rudder":
        parse(words[1:])


def test_files_and_places_that_the_page_names_exist() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"examples/serving/([\w.]+)", text):
        assert (FOLDER / name).is_file(), name
    headings = {
        re.sub(r"[^\w -]", "", line[3:].lower()).replace(" ", "-") for line in text.splitlines() if line[:3] == "## "
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings


@pytest.mark.slow
def test_two_machines_calibrate_together(tmp_path: Path) -> None:
    """The commands for several machines, here two of one process each that meet at this one's address."""
    loaded().model.save_pretrained(tmp_path / "model")
    loaded().processor.save_pretrained(tmp_path / "model")
    template = next(c for c in page_commands() if "--num_machines" in c and "calibrate" in c)
    words = shlex.split(template)
    launch, port = words[1 : words.index("calibrate")], free_port()
    replaced = {
        "--num_machines": 2,
        "--num_processes": 2,
        "--main_process_ip": "127.0.0.1",
        "--main_process_port": port,
    }
    tiny = shlex.split(
        "calibrate --device cpu --limit 4 --check-limit 0 --layers 1 --strengths 0.2,0.4 --k 2 --max-new-tokens 4"
    )
    tiny += ["--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")]

    def machine(rank: int) -> subprocess.Popen[str]:
        options = list(launch)
        for name, value in (replaced | {"--machine_rank": rank}).items():
            options[options.index(name) + 1] = str(value)
        program = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *options, *tiny]
        return subprocess.Popen(
            program, env=with_package(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    machines = [machine(rank) for rank in range(2)]
    try:
        outputs = [each.communicate(timeout=600)[0] for each in machines]
    finally:
        for each in machines:
            each.kill()
    # 1 if no setting of so small a grid keeps within the limits, which is a result as well.
    answers = sorted((tmp_path / "out" / "choosing" / "answers").glob("*.jsonl"))
    assert [path.name for path in answers] == ["0.jsonl", "1.jsonl"], outputs
    batches = [[json.loads(line) for line in path.read_text().splitlines()] for path in answers]
    done = [{(batch["key"], row["id"]) for batch in part for row in batch["rows"]} for part in batches]
    assert all(done), outputs
    assert not done[0] & done[1]
    assert len(done[0] | done[1]) == 3 * 4, outputs  # vanilla and two settings on four scenes
    assert list((tmp_path / "out").glob("result-*/report.md")), outputs
