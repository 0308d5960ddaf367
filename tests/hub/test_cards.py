"""The model card: metadata that the Hub reads, settings as they are, and an honest word on where they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf import RudderConfig, get_preset, list_presets
from rudder_hf.core.settings import CALL_SETTINGS
from rudder_hf.hub.card import Provenance, is_rendered, render_card
from rudder_hf.hub.push import repo_files
from tools.model_cards import card_files

MODEL_CARDS = Path(__file__).parent.parent.parent / "model_cards"


def card_of(*arguments: Any, **options: Any) -> ModelCard:
    """The card as the Hub reads it."""
    return ModelCard(render_card(*arguments, **options))


def calibrated(**record: Any) -> RudderConfig:
    """Settings whose record stands for them."""
    config = RudderConfig(base_model_name_or_path="org/base")
    config.calibration = {"model": {"name": "org/base"}, "settings": config.settings(), **record}
    return config


@pytest.mark.parametrize("name", list_presets())
def test_cards_of_presets(name: str) -> None:
    """Metadata that the Hub takes, words that claim no more than the paper, and one snippet in which all is named."""
    preset = get_preset(name)
    card = card_of(preset.config(), "org/somewhere")
    data = card.data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == (preset.base_model, "adapter")
    assert (data["pipeline_tag"], data["library_name"]) == ("image-text-to-text", "transformers")
    assert (data["license"], data["tags"][0], data["tags"][-1]) == ("apache-2.0", "rudder", "custom_generate")
    # Published settings are called so, guesses too.
    assert ("These settings are the paper's." in card.text) == preset.calibrated
    assert ("The paper reports that [" in card.text) == preset.calibrated
    assert ("not calibrated" in card.text) == (not preset.calibrated)
    text = render_card(preset.config(), "org/somewhere")
    assert len(text.splitlines()) <= 100
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(snippet, "card", "exec")
    assert '"org/somewhere"' in snippet
    assert 'pip install "transformers>=' in text
    assert (
        snippet.index('"image-text-to-text"')
        < snippet.index("transformers 5 removed")
        < snippet.index('"image-to-text"')
    )
    assert ("apply_chat_template" in text) == ("blip" not in name)
    assert ("48.6" in text) == (name == "llava-1.5-7b")


def test_the_table_has_every_setting_as_it_is() -> None:
    config = RudderConfig(layer=3, alpha_max=7.5, norm_cap=2.0, mode="add", steer_first_token=True, contrast=0.4)
    text, default = render_card(config), render_card(RudderConfig())
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    assert set(rows) == {"layer", *CALL_SETTINGS}
    assert (rows["layer"], rows["alpha_max"], rows["norm_cap"], rows["mode"]) == ("3", "7.5", "2", "add")
    assert ("nor is the first answer token" in text, "nor is the first answer token" in default) == (False, True)
    for words in ("go beyond the paper", "2507.08799", "2602.04268", "2510.19183"):
        assert (words in text, words in default) == (True, False)


def test_the_card_repeats_what_people_read_of_a_record() -> None:
    checked = {"checked_on": {"split": "evaluation", "images": 9}, "task": "scenes"}
    text = render_card(calibrated(detail="300 scenes", images=list(range(300)), data=checked, seed=3, metric="f1"))
    assert "These settings were calibrated on this model." in text
    for line in ("- source: 300 scenes", "- images to choose with: 300", "- chosen by: highest F1"):
        assert line in text.splitlines()
    assert "- data: checked on (split evaluation, images 9), task scenes" in text.splitlines()
    assert "seed" not in text
    assert "[!WARNING]" not in text


def change(left: float, right: float, low: float, high: float, **more: float) -> dict[str, float]:
    return {"left": left, "right": right, "value": right - left, "low": low, "high": high, **more}


HELD_OUT = {
    "length": change(31.0, 31.5, -0.1, 0.9),
    "broken_sentences": change(0.0, 0.0, 0.0, 0.0, p_value=1.0),
    "recall": change(0.6, 0.58, -0.03, 0.01, p_value=0.3),
    "f1": change(0.7, 0.72, 0.01, 0.03),
    "chair_i": change(0.15, 0.12, -0.05, -0.01, p_value=0.12),
    "chair_s": change(0.573, 0.433, -0.18, -0.1, p_value=0.001),
}
RESULTS = {
    "held_out": HELD_OUT,
    "held_out_minus_truncated": {"chair_s": change(0.5, 0.433, -0.1, -0.03, p_value=0.01)},
    "held_out_images": list(range(40)),
}


@pytest.mark.parametrize(("low", "high", "word"), [(-0.1, -0.03, "is"), (-0.1, 0.02, "may not be")])
def test_the_card_says_whether_the_effect_is_about_the_image(low: float, high: float, word: str) -> None:
    other = {"chair_s": change(0.5, 0.433, low, high, p_value=0.01)}
    text = render_card(calibrated(**{**RESULTS, "held_out_own_minus_other_card": other}))
    assert f"another image's CARD: -6.7 [{100 * low:+.1f}, {100 * high:+.1f}]. The effect {word} specific" in text


def test_held_out_images_are_a_table_and_what_is_left_of_the_effect() -> None:
    text = render_card(calibrated(**RESULTS, baseline=0.705882, versions={"torch": "2"}))
    # CHAIR_I: its interval leaves out 0, but its p-value is not small; F1 is of an old record, without a p-value.
    table = """On 40 held-out images, in percent, greedy decoding:

| metric | vanilla | RUDDER | change [95 % interval] | significant |
|---|---|---|---|---|
| CHAIR_S | 57.3 | 43.3 | -14.0 [-18.0, -10.0] | yes |
| CHAIR_I | 15.0 | 12.0 | -3.0 [-5.0, -1.0] | no |
| recall | 60.0 | 58.0 | -2.0 [-3.0, +1.0] | no |
| F1 | 70.0 | 72.0 | +2.0 [+1.0, +3.0] | yes |
| broken sentences | 0.0 | 0.0 | +0.0 [+0.0, +0.0] | no |
"""
    assert table in text
    assert "CHAIR_S minus that of vanilla truncated to the same recall: -6.7 [-10.0, -3.0], significant." in text
    assert not [word for word in ("was not measured", "p_value", "0.705882", "torch 2") if word in text]
    more = {**HELD_OUT, "recall": change(0.6, 0.6, -0.01, 0.01)}
    text = render_card(calibrated(**{**RESULTS, "held_out": more}))
    assert "vanilla's captions need not be truncated" in text
    assert "truncated to the same recall" not in text
    # A record from before the control, or without anything that the card knows.
    assert "On the held-out images, in percent" in render_card(calibrated(held_out=HELD_OUT))
    for nothing in ({}, None, 3, {"chair_s": 3}, {"chair_s": {"left": "x"}}):
        assert "held-out images" not in render_card(calibrated(held_out=nothing))


def test_a_card_promises_only_what_was_shown() -> None:
    promise, none = "With these settings [", "**These settings were not shown to help.**"
    shown, refused = calibrated(**RESULTS), calibrated(**RESULTS, refusal="CHAIR_I does not fall significantly")
    for config, helps in ((shown, True), (refused, False), (RudderConfig(), False)):
        assert (promise in render_card(config), none in render_card(config)) == (helps, not helps)
    assert "was not measured" not in render_card(refused)
    assert "| CHAIR_S | 57.3 | 43.3" in render_card(refused)
    # What was measured of other settings, or on another model, is no result of these.
    shown.alpha_max = 3.0
    assert "57.3" not in render_card(shown)
    assert "was not measured" in render_card(shown)


TAKEN = "not calibrated for this model"


def claims(config: RudderConfig) -> str | None:
    """What config.json notes beside the record; and the card's claim is the same."""
    text, stored = render_card(config, "org/name"), json.loads(repo_files(config)["config.json"])
    note: str | None = (stored["calibration"] or {}).get("note")
    calibrated = "These settings are the paper's." in text or "were calibrated on this model" in text
    assert calibrated == (note is None and stored["calibration"] is not None)
    assert calibrated == ("[!WARNING]" not in text)
    return note


def test_a_card_claims_nothing_for_another_model() -> None:
    """The paper's settings on a model that the paper never saw, by every way there."""
    for config, found in (
        (get_preset("llava-1.5-7b").config(), "the paper"),
        (calibrated(**RESULTS), "a calibration"),
    ):
        assert claims(config) is None
        origin = config.base_model_name_or_path
        config.base_model_name_or_path = "my-org/llava-ft"
        text = render_card(config)
        assert f"on {origin}, {TAKEN}" in text
        assert not [number for number in ("48.6", "57.3") if number in text]
        assert claims(config) == f"taken from {found} on {origin}, {TAKEN}"
    # What the record says of itself makes no difference.
    forged = RudderConfig(base_model_name_or_path="my-org/llava-ft", calibration={"source": "paper", "detail": "x"})
    assert TAKEN in str(claims(forged))
    forged.calibration = {"source": "paper", "model": {"name": "my-org/llava-ft"}, "settings": forged.settings()}
    assert TAKEN in str(claims(forged))


def test_a_note_stands_until_the_settings_are_restored() -> None:
    config = calibrated(settings={**RudderConfig().settings(), "k": 4.0})
    assert "`k`: 4 was found, now 5" in render_card(config)
    note = claims(config)
    assert note is not None
    assert "changed by hand" in note
    again = RudderConfig.from_dict(json.loads(repo_files(config)["config.json"]))
    assert claims(again) == note
    again.k = 4.0
    assert claims(again) is None


def test_a_record_has_to_name_its_model_its_revision_and_all_settings() -> None:
    for record in ({"data": "300 scenes"}, {"model": {"name": "org/base"}}, {"settings": RudderConfig().settings()}):
        assert claims(RudderConfig(base_model_name_or_path="org/base", calibration=record)) is not None
    partly = calibrated(settings={"layer": 30})
    assert claims(partly) is not None
    revised = calibrated(model={"name": "org/base", "revision": "a" * 40})
    revised.base_model_revision = "a" * 40
    assert claims(revised) is None
    revised.base_model_revision = "b" * 40
    assert claims(revised) is not None


def test_the_paths_of_a_machine_are_not_on_the_card(tmp_path: Path) -> None:
    config = calibrated(model={"name": str(tmp_path), "revision": "files-sha256:1"})
    assert str(tmp_path) not in render_card(config)
    assert "a calibration on a model that is not on the Hub" in render_card(config)
    card = card_of(RudderConfig(base_model_name_or_path=str(tmp_path)))
    assert str(tmp_path) not in str(card)
    assert card.data.base_model is None
    assert "base_model_relation" not in card.data.to_dict()


def test_an_edited_card_can_be_told() -> None:
    text = render_card(calibrated(), "org/name")
    assert is_rendered(text)
    assert is_rendered(text.replace("\n", "\r\n"))
    for edited in (text + "\nMore.", text.replace("RUDDER", "Rudder", 1), text.rsplit("<!--", 1)[0], ""):
        assert not is_rendered(edited)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


KEYS = ("model", "settings", "metric", "images", "data", "held_out", "held_out_images", "held_out_minus_truncated")


@settings(max_examples=60, deadline=None)
@given(record=st.dictionaries(st.sampled_from(KEYS) | st.text(min_size=1), JSON, max_size=4))
def test_no_calibration_record_breaks_the_card(record: dict[str, Any]) -> None:
    plain = RudderConfig(base_model_name_or_path="org/base")
    config = RudderConfig(base_model_name_or_path="org/base", calibration=record)
    text = render_card(config, "org/name")
    assert yaml.safe_load(text.split("---")[1]) == yaml.safe_load(render_card(plain, "org/name").split("---")[1])
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [line for line in render_card(plain, "org/name").splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("name", list_presets())
def test_the_folders_of_the_presets_are_what_would_be_pushed(name: str) -> None:
    """If this fails: `python -m tools.model_cards`."""
    assert sorted(path.name for path in MODEL_CARDS.iterdir()) == sorted(list_presets())
    folder = MODEL_CARDS / name
    stored = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    wanted = card_files(name)
    assert set(stored) == set(wanted)
    # The version of the transformers that wrote it is no part of the settings.
    configs = [json.loads(files.pop("config.json")) for files in (stored, wanted)]
    assert [config.pop("transformers_version") is not None for config in configs] == [True, True]
    assert configs[0] == configs[1]
    assert stored == wanted
    assert RudderConfig.from_pretrained(folder).layer == get_preset(name).layer


def test_a_record_from_before_the_contrast_stands_for_settings_without() -> None:
    found = {name: value for name, value in RudderConfig().settings().items() if not name.startswith("contrast")}
    config = calibrated(settings=found)
    config.contrast_after = 5  # a default of another version, without a meaning while there is no contrast
    assert Provenance(config).calibrated
    config.contrast = 0.6
    assert not Provenance(config).calibrated
    assert "`contrast`: 0 was found, now 0.6" in render_card(config)
