"""The embedded models: loadable by stock classes, as good as their card says, and steered by RUDDER to real effect."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoProcessor

import rudder_hf
from rudder_hf.hub.card import Provenance
from rudder_hf.methods import Sources, method_class
from rudder_hf.metrics.chair import CHAIR_METRICS, chair
from rudder_hf.metrics.statistics import Counts, compare, scores
from rudder_hf.metrics.words import BROKEN_METRICS, broken
from rudder_hf.runtime.answers import encode
from rudder_hf.runtime.models import base_revision
from rudder_hf.scenes import embedded
from rudder_hf.scenes.captions import DETAIL_PROMPT
from rudder_hf.scenes.images import Scene, draw, split_scenes
from tools.train_scenes import card

PACKAGE = Path(rudder_hf.__file__).parent
SCENES = 300
METRICS = (*CHAIR_METRICS, *BROKEN_METRICS)


@cache
def stock(name: str) -> tuple[Any, Any]:
    """The model and processor as the stock classes load them."""
    return (
        AutoModelForImageTextToText.from_pretrained(embedded.folder(name)),
        AutoProcessor.from_pretrained(embedded.folder(name)),
    )


def inputs_of(scenes: list[Scene]) -> dict[str, torch.Tensor]:
    """What a model is given to describe the scenes; both embedded models have the same prompt."""
    model, processor = stock(embedded.DEFAULT)
    return encode(model, processor, [draw(scene) for scene in scenes], [DETAIL_PROMPT] * len(scenes))


@cache
def captions(name: str, method: str) -> tuple[list[str], list[str]]:
    """Ids and captions of the first evaluation scenes."""
    model, processor = stock(name)
    scenes = split_scenes("evaluation")[:SCENES]
    ids = [str(scene.seed) for scene in scenes]
    inputs = encode(model, processor, [draw(scene) for scene in scenes], [DETAIL_PROMPT] * SCENES)
    sources = Sources(lambda method: embedded.config(name), prompts=lambda: [inputs])
    with method_class(method).for_model(model, sources).applied(model) as generate:
        out = generate(**inputs, do_sample=False, max_new_tokens=120, sample_ids=ids)
    return ids, processor.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@cache
def counts(name: str, method: str) -> Counts:
    """CHAIR and fluency of these captions."""
    ids, texts = captions(name, method)
    truth = {scene.seed: scene.names for scene in split_scenes("evaluation")[:SCENES]}
    found = chair(zip(ids, texts, strict=True), truth, "strict").counts
    return found.joined(broken(texts, ids))


def percent(name: str, method: str) -> dict[str, float]:
    return {key: 100 * value for key, value in scores(counts(name, method), METRICS).items()}


def test_package_data_stay_small_and_hold_no_pickle() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sum(path.stat().st_size for path in files) < 20e6
    harmless = {".json", ".jsonl", ".jinja", ".md", ".png", ".safetensors", ".typed", ""}
    assert {path.suffix for path in files} <= harmless


@pytest.mark.parametrize("name", embedded.names())
def test_stock_classes_load_the_model(name: str) -> None:
    model, processor = stock(name)
    assert type(model).__module__.startswith(f"transformers.models.{name}.")
    assert type(processor).__module__.startswith(f"transformers.models.{name}.")
    assert model.dtype == torch.float32
    assert model.num_parameters() <= 6_000_000
    assert model.config.text_config.num_hidden_layers >= 8
    with safe_open(embedded.folder(name) / "model.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F16"}  # noqa: SIM118


@pytest.mark.slow
@pytest.mark.parametrize("name", embedded.names())
def test_the_card_tells_the_truth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded.folder(name)
    metrics = json.loads((folder / "metrics.json").read_text())
    shipped = json.loads(card.HASHES.read_text())
    assert metrics["data_sha256"]["evaluation"] == shipped["evaluation"]
    assert metrics["recipe"] == json.loads((folder / "recipe.json").read_text())
    assert (folder / "training_log.jsonl").read_text().count('"decoder"') > 10
    # The first scenes are a sample of the 500 that the card, which is rendered from its metrics, speaks of.
    monkeypatch.setattr(card, "split_scenes", lambda split: split_scenes(split)[:60])
    found, told = card.measure(*stock(name), "evaluation"), metrics["vanilla"]["evaluation"]
    assert set(found) <= set(told)
    for key, spread in (("chair_s", 20.0), ("chair_i", 9.0), ("recall", 10.0), ("objects", 0.5), ("broken", 1.0)):
        assert found[key] == pytest.approx(told[key], abs=spread)
    for strategy, scored in found["pope"].items():
        assert set(scored) == set(told["pope"][strategy])
        assert scored["accuracy"] == pytest.approx(told["pope"][strategy]["accuracy"], abs=10)


@pytest.mark.slow
def test_rudder_cuts_hallucination_and_other_directions_do_not() -> None:
    vanilla, steered = percent("llava", "vanilla"), percent("llava", "rudder-beta")
    assert steered["chair_s"] <= 0.95 * vanilla["chair_s"]
    assert steered["recall"] >= 0.91 * vanilla["recall"]
    assert steered["broken_sentences"] <= 2.0
    for control in ("rudder-random", "rudder-shuffled"):
        assert percent("llava", control)["chair_i"] > (steered["chair_i"] + vanilla["chair_i"]) / 2, control
    assert percent("llava", "rudder-negated")["chair_i"] > vanilla["chair_i"]
    difference = compare(counts("llava", "vanilla"), counts("llava", "rudder-beta"), CHAIR_METRICS)
    assert difference["chair_i"].high < 0


@pytest.mark.parametrize("name", embedded.names())
def test_saved_settings_say_that_they_were_calibrated(name: str, tmp_path: Path) -> None:
    embedded.load(name)[0].save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())["calibration"]
    assert record["model"]["name"] == str(embedded.folder(name))
    assert "note" not in record
    assert "These settings were calibrated on this model." in (tmp_path / "README.md").read_text()
    for settings in embedded.settings_for_methods(name).values():
        assert settings.calibration is not None
        assert settings.calibration["model"]["revision"] == base_revision(stock(name)[0], str(embedded.folder(name)))
        assert not settings.calibration["refusal"]
    # Of other weights under the name nothing of the kind is said.
    shutil.copytree(embedded.folder(name), tmp_path / "other")
    (tmp_path / "other" / "metrics.json").write_text("{}")
    assert not Provenance(embedded.config(str(tmp_path / "other"))).calibrated


def test_load_gives_a_steered_model_and_settings_can_be_given() -> None:
    model, _ = embedded.load(alpha_max=0.0)
    base, _ = stock(embedded.DEFAULT)
    inputs = inputs_of(embedded.examples()[:1])
    assert model.config.alpha_max == 0.0
    assert torch.equal(model.generate(**inputs, max_new_tokens=20), base.generate(**inputs, max_new_tokens=20))
    with pytest.raises(ValueError, match="llava"):
        embedded.folder("gpt")
    with pytest.raises(ValueError, match="alpha_max"):
        embedded.config(alpha_max=-1.0)
