"""The page on serving: its commands are understood by the programs that they name, and machines share a run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from accelerate.commands.launch import launch_command_parser

from rudder_hf.cli.main import app
from tests.support.command import refused, rudder
from tests.support.serving import FOLDER, PAGE, page_commands

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


def test_the_place_among_the_processes_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for command in (("calibrate",), ("evaluate", "--task", "scenes")):
        refused(rudder(*command, "--model", "embedded", "--out", "nowhere"), "ranks go from 0 to 1")
