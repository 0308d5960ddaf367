"""Which of several processes this one is."""

from __future__ import annotations

import pytest

from rudder_hf.runtime.processes import Process, process_device, this_process


def test_processes_are_known_by_the_environment() -> None:
    assert this_process({}) == Process(0, 1, 0)
    assert this_process({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Process(5, 8, 1)
    for wrong in ({"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}):
        with pytest.raises(ValueError, match="RANK"):
            this_process(wrong)
    assert process_device("cuda", Process(5, 8, 1)) == "cuda:1"
    assert process_device("cuda", Process()) == "cuda"
    assert process_device("cpu", Process(1, 2, 1)) == "cpu"
