"""Which of several processes this one is, as launchers say by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """One of the processes that share a run.

    Attributes:
        rank: Its number, from 0 on, over all machines.
        count: How many there are.
        local_rank: Its number on this machine, which picks its accelerator.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is the one that talks."""
        return self.rank == 0


def this_process(environment: Mapping[str, str] | None = None) -> Process:
    """Read RANK, WORLD_SIZE and LOCAL_RANK, which `accelerate launch` and `torchrun` set.

    Nothing is exchanged between the processes but files in the results folder, so no process group is needed, and one
    that is lost takes nothing with it.

    Raises:
        ValueError: The variables contradict each other.
    """
    variables = os.environ if environment is None else environment
    values = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", None)):
        text = variables.get(name, default) or variables.get("RANK", "0")
        try:
            values[name] = int(text)
        except ValueError:
            raise ValueError(f"The environment variable {name} is {text!r}, but has to be a number.") from None
    rank, count = values["RANK"], values["WORLD_SIZE"]
    if not 0 <= rank < count:
        raise ValueError(f"The environment says RANK={rank} of WORLD_SIZE={count}: ranks go from 0 to {count - 1}.")
    return Process(rank, count, values["LOCAL_RANK"])


def process_device(device: str, process: Process) -> str:
    """The device of this process: with several on a machine, each takes the accelerator of its local rank."""
    if process.count == 1 or ":" in device or device == "cpu":
        return device
    return f"{device}:{process.local_rank}"
