"""Every example runs by itself and prints answers that differ; the stored notebook is what its cells print."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from rudder_hf.analyze.examples import Examples, answer_examples
from rudder_hf.metrics.chair import MARK
from rudder_hf.scenes import embedded
from tests.support.repos import inputs_for, make_base, picture
from tools import story

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# custom_method.py is tested with the other methods.
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("[!_]*.py") if path.stem != "custom_method")


@pytest.fixture(scope="module")
def found() -> Examples:
    """The answers to all example scenes, in one batch."""
    return answer_examples(*embedded.load())


@pytest.fixture(autouse=True)
def _beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("_common", None)


def run(name: str, monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    """Run a script as Python does, in this process."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def line_of(printed: str, name: str) -> str:
    line = next(line for line in printed.splitlines() if line.startswith(f"{name}: "))
    return line.removeprefix(f"{name}: ").replace(MARK, "").strip()


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_shows_two_answers_that_differ(
    name: str, found: Examples, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, monkeypatch)
    printed = capsys.readouterr().out
    number = re.match(r"image: example scene (\d+) \(", printed)
    assert number is not None
    place = int(number[1]) - 1
    assert line_of(printed, "vanilla") == found.vanilla[place] != found.steered[place]
    assert line_of(printed, "steered") == found.steered[place]
    assert "To see: " in (EXAMPLES / f"{name}.py").read_text()


def test_no_two_examples_show_the_same_scene() -> None:
    places = [re.search(r"load_image\(given(?:, place=(\d+))?\)", (EXAMPLES / f"{n}.py").read_text()) for n in SCRIPTS]
    assert sorted(int(place[1] or 0) for place in places if place) == list(range(len(SCRIPTS)))


def test_an_example_takes_a_model_and_an_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base")
    picture().save(tmp_path / "image.png")
    options = ["--layer", 2, "--alpha-max", 40, "--max-new-tokens", 8]
    run("wrapper", monkeypatch, "--model", base, "--image", tmp_path / "image.png", *options)
    printed = capsys.readouterr().out
    config = RudderConfig(layer=2, alpha_max=40.0)
    model = RudderForConditionalGeneration.from_base(AutoModelForImageTextToText.from_pretrained(base), config)
    processor = AutoProcessor.from_pretrained(base)
    inputs = inputs_for(processor, [picture()], "Please help me describe the image in detail")
    for name, switch in (("vanilla", False), ("steered", None)):
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False, rudder=switch)
        text = processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert line_of(printed, name) == text.strip()


# The notebook

MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|usr|opt|tmp|work|var|Users|mnt)/|[A-Z]:\\|0x[0-9a-f]{6,}")


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(story.NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def printed_by(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", ["picture"])) for output in outputs)


def test_the_notebook_has_ten_cells_and_outputs_that_are_clean_and_small() -> None:
    code = cells("code")
    assert len(code) + len(cells("markdown")) == 10
    assert story.NOTEBOOK.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert cell["outputs"]
        assert {output["output_type"] for output in cell["outputs"]} <= {"stream", "display_data"}
        assert not MACHINE_PATH.search(printed_by(cell["outputs"]))


def test_the_notebook_installs_as_the_readme_does() -> None:
    install = "pip install -c constraints.txt "
    assert install in (EXAMPLES.parent / "README.md").read_text()
    assert f"{install}'.[plots]'" in "".join(cells("markdown")[0]["source"])


def test_stored_outputs_are_what_the_cells_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word for word, but for last digits, which vary between processors."""
    pytest.importorskip("matplotlib", reason="the notebook draws a figure: pip install 'rudder-hf[plots]'")
    monkeypatch.setenv("MPLBACKEND", "agg")
    code = cells("code")
    now = story.run_cells(["".join(cell["source"]) for cell in code])

    def words(outputs: list[dict[str, Any]]) -> list[str]:
        return re.sub(r"-?\d+\.\d+", "number", printed_by(outputs)).split()

    for cell, outputs in zip(code, now, strict=True):
        assert words(cell["outputs"]) == words(outputs), "store the outputs again: python -m tools.story"
