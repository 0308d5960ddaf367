"""Every example runs, on a tiny model, and shows what it is about."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

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
