"""docs/gpu.md is true: its snippet runs, its command exists, the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rudder_hf.benchmark.verify import TOLERANCES
from rudder_hf.scenes import embedded
from tests.support.command import rudder

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "gpu.md").read_text()


def test_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(snippet.replace("llava-hf/llava-1.5-7b-hf", str(embedded.folder())), {})
    assert "| the hook adds what it says | passed |" in capsys.readouterr().out


def test_command() -> None:
    (command,) = re.findall(r"```bash\nrudder (.*?)\n```", PAGE)
    words = command.replace("llava-hf/llava-1.5-7b-hf", "embedded").split()
    result = rudder(*words, "--no-compile", "--new-tokens", 3)
    assert result.exit_code == 0, result.output
    assert "`--no-compile`" in PAGE


def test_names_and_numbers() -> None:
    for name in set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE)):
        assert (ROOT / name).is_file()
    assert "1 % of the largest in float16 and by 5 % in bfloat16 (0.01 % in float32)" in " ".join(PAGE.split())
    assert sorted(TOLERANCES.values()) == [1e-4, 1e-2, 5e-2]
