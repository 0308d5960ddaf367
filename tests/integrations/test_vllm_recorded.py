"""The recorded results of the tests that need vLLM hold for the present code, at both ends of the tested range."""

from __future__ import annotations

import pytest

from rudder_hf.integrations.vllm import TESTED
from tests.vllm.engines import CONFIGURATIONS
from tests.vllm.environment import code
from tests.vllm.tables import recorded


def check(result: dict[str, object], part: str, release: str) -> None:
    assert result.get("code") == code()["code"], (
        f"benchmarks/vllm holds no result of {part} with vLLM {release} for the present state of rudder_hf/core and "
        "rudder_hf/integrations/vllm. Measure it again, in an environment with this vLLM (docs/serving.md "
        f"has its commands): python -m tests.vllm {part}"
    )
    assert result["passed"]


@pytest.mark.parametrize("release", TESTED)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_parity_was_measured_on_the_present_code(name: str, release: str) -> None:
    check(recorded("parity", release).get("configurations", {}).get(name, {}), f"parity {name}", release)


@pytest.mark.parametrize("release", TESTED)
@pytest.mark.parametrize("part", ["client", "refusals"])
def test_server_was_measured_on_the_present_code(part: str, release: str) -> None:
    check(recorded(part, release), part, release)


def test_there_are_requests_and_controls_enough() -> None:
    assert sum(configuration.control for configuration in CONFIGURATIONS.values()) >= 3
    for found in recorded("parity")["configurations"].values():
        assert all(part["requests"] >= 26 for part in found["rounds"])
