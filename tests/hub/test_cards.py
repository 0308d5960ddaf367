"""The model card: metadata that the Hub reads, settings as they are, and an honest word on where they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf import RudderConfig, get_preset, list_presets
from rudder_hf.core.settings import CALL_SETTINGS
from rudder_hf.hub.card import Provenance, is_rendered, render_card
from rudder_hf.hub.push import repo_files
from tools.model_cards import card_files

RESULT = {
    "task_type": "image-to-text",
    "dataset_type": "coco",
    "dataset_name": "MSCOCO",
    "dataset_split": "val",
    "metric_type": "chair_s",
    "metric_name": "CHAIR_S",
    "metric_value": 39.5,
}
MODEL_CARDS = Path(__file__).parent.parent.parent / "model_cards"
PAPER = Path(__file__).parent.parent.parent.parent / "shared" / "paper" / "rudder_icml2026.tex"


def card_of(*arguments: Any, **options: Any) -> ModelCard:
    """The card as the Hub reads it."""
    return ModelCard(render_card(*arguments, **options))


def calibrated(**record: Any) -> RudderConfig:
    """Settings whose record stands for them."""
    config = RudderConfig(base_model_name_or_path="org/base")
    config.calibration = {"model": {"name": "org/base"}, "settings": config.settings(), **record}
    return config


@pytest.mark.parametrize("name", list_presets())
def test_metadata_of_presets(name: str) -> None:
    preset = get_preset(name)
    card = card_of(preset.config(), "org/somewhere")
    data = card.data.to_dict()
    assert data["base_model"] == preset.base_model
    assert data["base_model_relation"] == "adapter"
    assert (data["pipeline_tag"], data["library_name"]) == ("image-text-to-text", "transformers")
    assert data["license"] == "apache-2.0"
    assert {"rudder", "custom_generate"} <= set(data["tags"])
    assert "model-index" not in data
    # Published settings are called so, guesses too.
    assert ("These settings are the paper's." in card.text) == preset.calibrated
    assert ("not calibrated" in card.text) == (not preset.calibrated)


@pytest.mark.parametrize("name", list_presets())
def test_the_snippets_are_python_and_name_the_repository(name: str) -> None:
    text = render_card(get_preset(name).config(), "org/somewhere")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 1
    assert len(text.splitlines()) <= 100
    for snippet in snippets:
        compile(snippet, "card", "exec")
        assert '"org/somewhere"' in snippet
    assert ("apply_chat_template" in text) == ("blip" not in name)


def test_the_table_has_every_setting_as_it_is() -> None:
    config = RudderConfig(layer=3, alpha_max=7.5, norm_cap=2.0, mode="add", steer_first_token=True, contrast=0.4)
    text = render_card(config)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    assert set(rows) == {"layer", *CALL_SETTINGS}
    assert (rows["layer"], rows["alpha_max"], rows["norm_cap"], rows["mode"]) == ("3", "7.5", "2", "add")
    assert "first answer token is not steered" not in text
    assert "first answer token is not steered" in render_card(RudderConfig())


def test_results_are_in_the_hubs_form() -> None:
    card = card_of(calibrated(), "org/name", [RESULT, EvalResult(**{**RESULT, "metric_type": "x", "metric_value": 1})])
    assert [(r.metric_type, r.metric_value) for r in card.data.eval_results or []] == [("chair_s", 39.5), ("x", 1)]
    assert card.data.to_dict()["model-index"][0]["name"] == "name"
    assert "| MSCOCO (val) | CHAIR_S | 39.5 |" in card.text
    assert "was not measured" not in card.text
    # A calibration may bring its own.
    assert render_card(calibrated(evaluation=[RESULT])) == render_card(calibrated(), evaluation=[RESULT])
    assert "was not measured" in render_card(calibrated())


@pytest.mark.parametrize(
    "wrong", ["CHAIR", [3], [{"metric": 3}], [{**RESULT, "more": 1}], [{"task_type": "x"}], {"a": 1}, 3]
)
def test_results_in_another_form_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="evaluation"):
        render_card(RudderConfig(), evaluation=wrong)


def test_the_calibration_is_told_but_not_its_long_lists() -> None:
    checked = {"checked_on": {"split": "evaluation", "images": 9}, "task": "scenes"}
    text = render_card(calibrated(detail="300 scenes", ids=list(range(300)), data=checked, seed=None, metric="f1"))
    assert "These settings were calibrated on this model." in text
    for line in ("- detail: 300 scenes", "- ids: 300 entries, in config.json", "- chosen by: highest F1"):
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
MACHINE_ONLY = {"baseline": 0.705882, "result": 0.7,
                "grid": {"k": [1.0]}, "versions": {"torch": "2"}}  # fmt: skip


def test_the_card_says_whether_the_effect_is_about_the_image() -> None:
    for low, high, words in ((-0.1, -0.03, "that much is about"), (-0.1, 0.02, "may not be about")):
        other = {"chair_s": change(0.5, 0.433, low, high, p_value=0.01)}
        text = render_card(calibrated(**{**RESULTS, "held_out_own_minus_other_card": other}))
        told = f"another image's CARD: -6.7 [{100 * low:+.1f}, {100 * high:+.1f}]: "
        assert told in text
        assert f"{words} the image." in text


def test_held_out_images_are_a_table_and_a_sentence() -> None:
    text = render_card(calibrated(**RESULTS, **MACHINE_ONLY))
    table = """On 40 held-out images, in percent:

|  | against vanilla | against vanilla cut to the same recall |
| --- | --- | --- |
| CHAIR_S | 57.3 to 43.3 (-14.0 [-18.0, -10.0]) | 50.0 to 43.3 (-6.7 [-10.0, -3.0]) |
| CHAIR_I | 15.0 to 12.0 (-3.0 [-5.0, -1.0]) |  |
| recall | 60.0 to 58.0 (-2.0 [-3.0, +1.0]) |  |
| F1 | 70.0 to 72.0 (+2.0 [+1.0, +3.0]) |  |
| broken sentences | 0.0 to 0.0 (+0.0 [+0.0, +0.0]) |  |
"""
    assert table in text
    # CHAIR_I: its interval leaves out 0, but its p-value is not small; F1 is of an old record, without a p-value.
    shown = "show lower CHAIR_S and higher F1, and leave open a change of CHAIR_I, recall, broken sentences."
    assert f"Against vanilla these images {shown}" in text
    assert "Against vanilla cut to the same recall these images show lower CHAIR_S." in text
    assert "was not measured" not in text
    assert not [word for word in ("p_value", "left 0", "0.705882", "torch 2") if word in text]


def test_vanilla_uncut_needs_no_column() -> None:
    more = {**HELD_OUT, "recall": change(0.6, 0.6, -0.01, 0.01)}
    text = render_card(calibrated(**{**RESULTS, "held_out": more}))
    assert "| CHAIR_S | 57.3 to 43.3 (-14.0 [-18.0, -10.0]) |\n" in text
    assert "vanilla's captions need not be cut to the same recall" in text
    # A record from before the control, or without anything that the card knows.
    old = render_card(calibrated(held_out=HELD_OUT))
    assert "On the held-out images, in percent:" in old
    assert "cut to the same recall" not in old
    for nothing in ({}, None, 3, {"chair_s": 3}, {"chair_s": {"left": "x"}}):
        assert "held-out images" not in render_card(calibrated(held_out=nothing))


def test_a_card_promises_only_what_was_shown() -> None:
    promise, none = "\nFewer objects that are not in the image", "**These settings were not shown to help.**"
    shown, refused = calibrated(**RESULTS), calibrated(**RESULTS, refusal="CHAIR_I does not fall significantly")
    for config, helps in ((shown, True), (refused, False), (RudderConfig(), False)):
        assert (promise in render_card(config), none in render_card(config)) == (helps, not helps)
    assert "was not measured" not in render_card(refused)
    assert "| CHAIR_S | 57.3 to 43.3" in render_card(refused)
    # What was measured of other settings, or on another model, is no result of these.
    shown.alpha_max = 3.0
    assert "57.3" not in render_card(shown)
    assert "was not measured" in render_card(shown)


def test_settings_changed_after_calibration_are_not_called_calibrated() -> None:
    config = get_preset("llava-1.5-7b").config()
    assert "48.6" in render_card(config)
    config.alpha_max = 15.0
    text = render_card(config)
    assert "changed by hand" in text
    assert "`alpha_max`: 20 was found, now 15" in text
    assert "the paper's." not in text
    assert "48.6" not in text
    own = calibrated(settings={**RudderConfig().settings(), "k": 4.0})
    assert "`k`: 4 was found, now 5" in render_card(own)
    own.k = 4.0
    assert "changed by hand" not in render_card(own)


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
        (calibrated(evaluation=[RESULT]), "a calibration"),
    ):
        assert claims(config) is None
        origin = config.base_model_name_or_path
        config.base_model_name_or_path = "my-org/llava-ft"
        text = render_card(config)
        assert f"on {origin}, {TAKEN}" in text
        assert "MSCOCO (val)" not in text
        assert "48.6" not in text
        assert claims(config) == f"taken from {found} on {origin}, {TAKEN}"
    # What the record says of itself makes no difference.
    forged = RudderConfig(base_model_name_or_path="my-org/llava-ft", calibration={"source": "paper", "detail": "x"})
    assert TAKEN in str(claims(forged))
    forged.calibration = {"source": "paper", "model": {"name": "my-org/llava-ft"}, "settings": forged.settings()}
    assert TAKEN in str(claims(forged))


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


def test_a_note_goes_when_the_settings_are_restored() -> None:
    config = calibrated()
    config.k = 4.0
    note = claims(config)
    assert note is not None
    assert "changed by hand" in note
    again = RudderConfig.from_dict(json.loads(repo_files(config)["config.json"]))
    assert claims(again) == note
    again.k = RudderConfig().k
    assert claims(again) is None


def test_the_paths_of_a_machine_are_not_on_the_card(tmp_path: Path) -> None:
    config = calibrated(model={"name": str(tmp_path), "revision": "files-sha256:1"})
    assert str(tmp_path) not in render_card(config)
    assert "a calibration on a model that is not on the Hub" in render_card(config)


def test_an_edited_card_can_be_told() -> None:
    text = render_card(calibrated(), "org/name")
    assert is_rendered(text)
    assert is_rendered(text.replace("\n", "\r\n"))
    for edited in (text + "\nMore.", text.replace("RUDDER", "Rudder", 1), text.rsplit("<!--", 1)[0], ""):
        assert not is_rendered(edited)


def test_a_base_in_a_folder_is_not_named(tmp_path: Path) -> None:
    card = card_of(RudderConfig(base_model_name_or_path=str(tmp_path)))
    assert str(tmp_path) not in str(card)
    assert card.data.base_model is None
    assert "base_model_relation" not in card.data.to_dict()
    assert "not on the Hub" in card.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(record=st.dictionaries(st.text(min_size=1).filter(lambda name: name != "evaluation"), JSON, max_size=4))
def test_no_calibration_record_breaks_the_card(record: dict[str, Any]) -> None:
    plain = RudderConfig(base_model_name_or_path="org/base")
    config = RudderConfig(base_model_name_or_path="org/base", calibration=record)
    text = render_card(config, "org/name")
    assert yaml.safe_load(text.split("---")[1]) == yaml.safe_load(render_card(plain, "org/name").split("---")[1])
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [line for line in render_card(plain, "org/name").splitlines() if line.startswith("## ")]


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
def test_reported_numbers_are_the_papers() -> None:
    tables = PAPER.read_text()
    rows = [
        re.findall(r"\d+\.\d+", line) for line in tables.splitlines() if "Vanilla" in line or "RUDDER-Beta" in line
    ]
    reported = [preset.reported for preset in map(get_preset, list_presets()) if preset.calibrated]
    assert len(reported) == 3
    for metrics in (("CHAIR_S", "CHAIR_I"), ("POPE accuracy", "POPE F1"), ("MME",)):
        for which in (0, 1):
            wanted = [preset[metric][which] for preset in reported for metric in metrics]
            assert any([float(value) for value in row] == wanted for row in rows), (metrics, which)


@pytest.mark.parametrize("name", list_presets())
def test_the_folders_of_the_presets_are_what_would_be_pushed(name: str) -> None:
    """If this fails: `python -m tools.model_cards`."""
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


def test_there_is_a_folder_for_each_preset_and_nothing_else() -> None:
    assert sorted(path.name for path in MODEL_CARDS.iterdir()) == sorted(list_presets())
    assert not any(path.is_symlink() for path in MODEL_CARDS.rglob("*"))


def test_a_contrast_is_called_beyond_the_paper() -> None:
    assert "go beyond the paper" not in render_card(RudderConfig())
    card = render_card(RudderConfig(contrast=0.6))
    assert "go beyond the paper" in card
    assert all(number in card for number in ("2507.08799", "2602.04268", "2510.19183"))


def test_a_record_from_before_the_contrast_stands_for_settings_without() -> None:
    found = {name: value for name, value in RudderConfig().settings().items() if not name.startswith("contrast")}
    config = calibrated(settings=found)
    config.contrast_after = 5  # a default of another version, without a meaning while there is no contrast
    assert Provenance(config).calibrated
    config.contrast = 0.6
    assert not Provenance(config).calibrated
    assert "`contrast`: 0 was found, now 0.6" in Provenance(config).details
