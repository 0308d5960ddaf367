"""Every example runs, on a tiny model, and shows what it is about; so does the notebook, from first to last cell."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from tests.support.repos import inputs_for, make_base, picture

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# custom_method.py is tested with the other methods.
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("[!_]*.py") if path.stem != "custom_method")
LAYER, STRENGTH, NEW = 2, 40.0, 8
QUESTION = "Please help me describe the image in detail"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.png"
    picture().save(path)
    return path


@pytest.fixture(scope="module")
def expected(base: Path) -> dict[str, str]:
    """What the tiny model says, found without the examples."""
    config = RudderConfig(layer=LAYER, alpha_max=STRENGTH)
    model = RudderForConditionalGeneration.from_base(AutoModelForImageTextToText.from_pretrained(base), config)
    processor = AutoProcessor.from_pretrained(base)
    inputs = inputs_for(processor, [picture()], QUESTION)

    def say(**options: object) -> str:
        ids = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, **options)
        return str(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)).strip()

    said = {"steered": say(), "vanilla": say(rudder=False), "add": say(rudder={"mode": "add"})}
    assert len(set(said.values())) > 1
    return said


def run(name: str, base: Path, image_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script as Python does, in this process."""
    options = ["--model", base, "--image", image_file, "--layer", LAYER]
    options += ["--alpha-max", STRENGTH, "--max-new-tokens", NEW]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


# What each shows of the answers.
SHOWN = {
    "batches": ("vanilla", "steered"),
    "custom_generate": ("vanilla", "steered", "add"),
    "hub_repo": ("steered",),
    "lora": ("steered",),
    "offload": ("steered",),
    "pipelines": ("steered",),
    "streaming": ("steered",),
    "wrapper": ("vanilla", "steered"),
}


def test_every_example_is_tested() -> None:
    assert sorted(SHOWN) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_example(
    name: str,
    base: Path,
    image_file: Path,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(name, base, image_file, monkeypatch)
    printed = capsys.readouterr().out
    for what in SHOWN[name]:
        assert expected[what] in printed
    assert not any(path.name.startswith("offload") for path in Path.cwd().iterdir())


def test_without_a_model() -> None:
    """An example by itself, as a reader tries it first."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(EXAMPLES / "wrapper.py"), "--max-new-tokens", "4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "vanilla: The image shows" in done.stdout
    assert "steered: " in done.stdout


# The notebook

NOTEBOOK = EXAMPLES / "story.ipynb"
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|usr|opt|tmp|work|var|Users|mnt)/|[A-Z]:\\|0x[0-9a-f]{6,}")
# As a notebook does: every cell in one namespace, with the output of each cell kept apart.
RUN = """
import contextlib, io, json, sys
printed, names = [], {"__name__": "__main__"}
for code in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "cell", "exec"), names)
    printed.append(out.getvalue())
keys = ("captions", "counts", "helped", "failed", "swept", "absent")
facts = {key: names[key] for key in keys} | {
    "printed": printed,
    "tokens": len(names["tokens"]), "drawn": len(names["axis"].lines[0].get_ydata()),
    "layer": [names["again"].layer, names["config"].layer],
    "strengths": [names["again"].alpha_max, names["config"].alpha_max, names["stronger"].alpha_max],
}
print(json.dumps(facts))
"""


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def saved_text(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] if output["output_type"] == "stream" for line in output["text"])


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("matplotlib", reason="the notebook draws a figure: pip install 'rudder-hf[plots]'")
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(NOTEBOOK.parent.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(["".join(cell["source"]) for cell in cells("code")]),
        env=environment, cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_notebook_is_stored_with_outputs_of_one_run_that_are_clean_and_small() -> None:
    assert NOTEBOOK.stat().st_size < 300_000
    code = cells("code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        kinds = [output["output_type"] for output in cell["outputs"]]
        assert kinds
        assert "error" not in kinds
        for output in cell["outputs"]:
            assert output.get("name", "stdout") == "stdout"  # no warnings, no progress bars
            text = "".join(output.get("text", [])) + "".join(output.get("data", {}).get("text/plain", []))
            assert "Traceback" not in text
            assert not MACHINE_PATH.search(text)
    images = [output for cell in code for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(images) == 3  # an example where steering helps, one where it fails, the gate
    headings = [line for cell in cells("markdown") for line in cell["source"] if line.startswith("## ")]
    assert [int(heading.split()[1].rstrip(".")) for heading in headings] == list(range(1, 11))


def test_the_notebook_installs_as_the_readme_does() -> None:
    install = "pip install -c constraints.txt "
    assert install in (EXAMPLES.parent / "README.md").read_text()
    assert f"{install}'.[plots]'" in "".join(cells("markdown")[0]["source"])


def test_saved_outputs_are_what_the_cells_print(facts: Any) -> None:
    """Settings, counts and captions of the examples; last digits, and so the other steps, vary between processors."""

    def words(text: str) -> list[str]:
        return re.sub(r"-?\d+\.\d+", "number", text).split()

    saved = [saved_text(cell) for cell in cells("code")]
    assert len(saved) == len(facts["printed"])
    for before, now in list(zip(saved, facts["printed"], strict=True))[:4]:
        assert words(before) == words(now), "run the notebook again, and save it without what was written to stderr"


def test_the_story_holds(facts: Any) -> None:
    captions, counts = facts["captions"], facts["counts"]
    for kind, sign in (("helped", 1), ("failed", -1)):
        name, number = facts[kind][0]
        assert sign * (counts["vanilla"][number - 1][0] - counts[name][number - 1][0]) > 0
    # Without strength the sweep is the model as it is, at the settings' own it is the steered answer.
    name, number = facts["failed"][0]
    assert facts["swept"][0] == captions["vanilla"][number - 1]
    assert facts["swept"][3] == captions[name][number - 1]
    assert facts["drawn"] == facts["tokens"]
    assert facts["layer"][0] == facts["layer"][1]
    again, own, stronger = facts["strengths"]
    assert (again, stronger) == (own, 1.5 * own)
    absent = {name: sum(numbers) for name, numbers in facts["absent"].items()}
    assert absent["rudder-beta"] < min(absent[name] for name in ("vanilla", "rudder-random", "rudder-shuffled"))
    assert absent["contrast"] < min(absent[name] for name in ("vanilla", "contrast-shuffled"))
