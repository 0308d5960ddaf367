"""A model whose weights two processes share (tensor parallel, FSDP2): both steer it as one process does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rudder_hf import attach
from tests.support.helpers import OTHER_ROW, ROW, assert_different, family_of, logits, run, settings

ROOT = Path(__file__).parent.parent.parent
PROCESSES = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_processes(way: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    """What each of the processes generated."""
    shared = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.parallel", way, str(folder)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(said)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(PROCESSES)]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("way", ["tp", "fsdp"])
def test_two_processes_equal_one(way: str, tmp_path: Path) -> None:
    family = family_of("llava")
    model = family.build()
    model.save_pretrained(tmp_path / "model")
    inputs = family.inputs(model, [ROW, OTHER_ROW])
    vanilla = run(model, inputs)
    with attach(model, settings()):
        wanted = run(model, inputs, output_rudder=True)
    assert_different(wanted, vanilla)
    for found in in_processes(way, tmp_path):
        assert found["sharded"] > 0
        assert torch.equal(found["sequences"], wanted.sequences)
        torch.testing.assert_close(found["logits"], logits(wanted), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(found["card"], wanted.rudder.card)
        torch.testing.assert_close(found["gate"], wanted.rudder.gate.nan_to_num())
        torch.testing.assert_close(found["vanilla"], logits(vanilla), rtol=2e-5, atol=2e-5)
        assert torch.equal(found["off"], found["vanilla"])
