"""The notebook runs from its first cell to its last, and shows what its text says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib", reason="the notebook draws a figure: pip install 'rudder-hf[plots]'")

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "story.ipynb"
# As a notebook does: every cell in one namespace, its output told apart, the value of its last line shown.
RUN = """
import ast, contextlib, io, json, sys
printed, names = [], {"__name__": "__main__"}
for code in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "cell", "exec"), names)
    printed.append(out.getvalue())
facts = {
    "printed": printed,
    "vanilla": names["vanilla"], "steered": names["steered"], "swept": names["swept"],
    "tokens": len(names["tokens"]), "drawn": len(names["axis"].lines[0].get_ydata()),
    "layer": [names["again"].layer, names["config"].layer],
    "strengths": [names["again"].alpha_max, names["config"].alpha_max, names["stronger"].alpha_max],
}
print(json.dumps(facts))
"""


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(NOTEBOOK.parent.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(["".join(cell["source"]) for cell in cells("code")]),
        env=environment, cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_stored_without_outputs() -> None:
    for cell in cells("code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        ast.parse("".join(cell["source"]))
    headings = [line for cell in cells("markdown") for line in cell["source"] if line.startswith("## ")]
    assert [int(heading.split()[1].rstrip(".")) for heading in headings] == list(range(1, 11))


def test_every_cell_but_the_figure_and_the_last_prints_something(facts: Any) -> None:
    assert len(facts["printed"]) == 9
    assert [bool(printed.strip()) for printed in facts["printed"]] == [True] * 6 + [False] + [True] * 2


def test_the_story_holds(facts: Any) -> None:
    assert facts["steered"] != facts["vanilla"]
    # Without strength the sweep is the model as it is, at the settings' own it is the steered answer.
    assert facts["swept"][0] == facts["vanilla"]
    assert facts["swept"][3] == facts["steered"]
    assert facts["drawn"] == facts["tokens"]
    assert facts["layer"][0] == facts["layer"][1]
    again, own, stronger = facts["strengths"]
    assert (again, stronger) == (own, 1.5 * own)
    controls = facts["printed"][4].splitlines()
    assert [line.split()[0] for line in controls] == ["vanilla", "rudder-beta", "rudder-random", "rudder-shuffled"]
    wrong = {line.split()[0]: int(line.split()[-4]) for line in controls}
    assert wrong["rudder-beta"] < wrong["vanilla"]
