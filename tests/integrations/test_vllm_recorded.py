"""The recorded results of the tests that need vLLM, at both ends of the tested range.

Results of other code than the present one are skipped, with the command that measures them anew.
"""

from __future__ import annotations

import hashlib
import re

import pytest

from rudder_hf.integrations.vllm import TESTED
from tests.vllm.engines import CONFIGURATIONS
from tests.vllm.records import PAGE, TABLES, code, meaning, recorded


def check(result: dict[str, object], part: str, release: str) -> None:
    assert result.get("passed", not result)
    if result.get("code") != code()["code"]:
        pytest.skip(
            f"{part} with vLLM {release} was measured on an earlier state of rudder_hf/core or "
            f"rudder_hf/integrations/vllm (benchmarks/vllm/README.md has the environment): python -m tests.vllm {part}"
        )


def test_the_digest_is_of_code_that_is_there() -> None:
    assert code()["code"] != hashlib.sha256().hexdigest()[:16]


@pytest.mark.parametrize("release", TESTED)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_parity_was_measured_on_the_present_code(name: str, release: str) -> None:
    check(recorded("parity", release).get("configurations", {}).get(name, {}), f"parity {name}", release)


@pytest.mark.parametrize("release", TESTED)
@pytest.mark.parametrize("part", ["client", "refusals"])
def test_server_was_measured_on_the_present_code(part: str, release: str) -> None:
    check(recorded(part, release), part, release)


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ('"""Other words."""\nRATE = 1 + 2\n\n\ndef scale(x): return RATE*x\n', True),
        (
            'RATE = 1 + 2\n"""Of a constant."""\ndef scale(x):\n    """Say so."""\n    return RATE * x  # why',
            True,
        ),
        ("RATE = 3\ndef scale(x): return RATE * x", False),
        ("RATE = 1 + 2\ndef scale(x, y=None): return RATE * x", False),
        ("RATE = 1 + 2\ndef scale(x): return x * RATE", False),
    ],
)
def test_results_outlive_comments_and_docstrings(changed: str, same: bool) -> None:
    """Only what a module does counts."""
    assert (meaning(changed) == meaning("RATE = 1 + 2\ndef scale(x):\n    return RATE * x\n")) == same


def test_there_are_requests_and_controls_enough() -> None:
    assert sum(configuration.control for configuration in CONFIGURATIONS.values()) >= 3
    for found in recorded("parity")["configurations"].values():
        assert all(part["requests"] >= 26 for part in found["rounds"])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_the_recorded_results(name: str) -> None:
    found = re.search(rf"<!-- vllm {name} -->\n(.*?)\n<!-- end of vllm {name} -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == TABLES[name]()
