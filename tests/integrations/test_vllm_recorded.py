"""The recorded results of the tests that need vLLM hold for the present code."""

from __future__ import annotations

import pytest

from tests.vllm.environment import code
from tests.vllm.tables import recorded

CONFIGURATIONS = recorded("parity")["configurations"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_parity_was_measured_on_the_present_code(name: str) -> None:
    assert CONFIGURATIONS[name].get("code") == code()["code"], (
        f"benchmarks/vllm/parity.json holds a result of {name} for another state of rudder_hf/core and "
        "rudder_hf/integrations/vllm. Measure it again, in an environment with vLLM (examples/serving/README.md has "
        f"its commands): python -m tests.vllm parity {name}"
    )


@pytest.mark.parametrize("part", ["client", "refusals"])
def test_server_was_measured_on_the_present_code(part: str) -> None:
    assert recorded(part).get("code") == code()["code"], (
        f"benchmarks/vllm/{part}.json was recorded for another state of rudder_hf/core and "
        "rudder_hf/integrations/vllm. Measure it again, in an environment with vLLM (examples/serving/README.md has "
        f"its commands): python -m tests.vllm {part}"
    )
