"""`RudderConfig` and the settings of a call: what is allowed, what is refused, and what survives a round trip."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from rudder_hf import RudderConfig, RudderForConditionalGeneration, __version__, get_preset
from rudder_hf.core.call import resolve_settings
from rudder_hf.core.settings import CALL_SETTINGS

BAD: list[tuple[str, Any]] = [
    ("layer", "3"),
    ("layer", 3.0),
    ("layer", None),
    ("layer", True),
    ("mode", "gamma"),
    ("mode", None),
    ("pool", "max"),
    ("span", "all"),
    ("alpha_max", -1.0),
    ("alpha_max", math.nan),
    ("alpha_max", math.inf),
    ("alpha_max", "20"),
    ("alpha_max", None),
    ("alpha_max", True),
    ("alpha_max", [20.0]),
    ("k", -0.1),
    ("k", math.nan),
    ("c", math.inf),
    ("c", "1"),
    ("c", -200.0),
    ("k", 1e39),
    ("alpha_max", 1e39),
    ("g_min", -0.1),
    ("g_max", 1.1),
    ("g_max", [1.0]),
    ("norm_cap", 0.0),
    ("norm_cap", -2.0),
    ("norm_cap", math.nan),
    ("steer_first_token", 1),
    ("steer_first_token", "yes"),
    *[("contrast", value) for value in (-0.1, 101, "1", True, math.nan)],
    *[("contrast_first_layer", value) for value in (-1, 1.5, True)],
    *[("contrast_after", value) for value in (0, 2.0, None)],
    ("base_model_name_or_path", 3),
    ("calibration", "paper"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        RudderConfig(**{name: value})
    assert repr(value) in str(caught.value)
    with pytest.raises(ValueError, match=name):
        setattr(RudderConfig(), name, value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rudder", name: value}))
    with pytest.raises(ValueError, match=name):
        RudderConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("alpha_max", 0.0, 1e6),
        ("k", 0.0, 1e6),
        ("c", -50.0, 50.0),
        ("g_min", 0.0, 1.0),
        ("g_max", 0.0, 1.0),
        ("norm_cap", math.nextafter(0.0, 1.0), 1e6),
    ],
)
def test_ranges_include_their_bounds_and_nothing_beyond(name: str, low: float, high: float) -> None:
    rest = {"g_min": {"g_max": 1.0}, "g_max": {"g_min": 0.0}}.get(name, {})
    for value in (low, high):
        assert getattr(RudderConfig(**{name: value, **rest}), name) == value
    for value in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf)):
        with pytest.raises(ValueError, match=name):
            RudderConfig(**{name: value, **rest})


def test_an_empty_gate_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"g_min=0\.8 and g_max=0\.2"):
        RudderConfig(g_min=0.8, g_max=0.2)
    config = RudderConfig(layer=1)
    config.g_min, config.g_max = 0.9, 0.8  # Each is allowed; the range is empty until both are set.
    with pytest.raises(ValueError, match="g_min <= g_max"):
        resolve_settings(config, None, 1)


@hypothesis.settings(deadline=None)
@given(
    layer=st.integers(-40, 40),
    alpha_max=st.floats(0, 100),
    k=st.floats(0, 20),
    mode=st.sampled_from(["beta", "add"]),
    pool=st.sampled_from(["mean", "norm"]),
    norm_cap=st.none() | st.floats(0.1, 10),
    steer_first_token=st.booleans(),
)
def test_json_round_trip(**fields: Any) -> None:
    config = RudderConfig(base_model_name_or_path="org/base", calibration={"source": "test", "n": 3}, **fields)
    again = RudderConfig.from_dict(json.loads(config.to_json_string()))
    assert again.to_dict() == config.to_dict() | {"rudder_version": __version__}
    for name, value in fields.items():
        assert getattr(again, name) == value


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    config = RudderConfig(alpha_max=numpy.float32(2.5), layer=numpy.int64(3))
    assert (config.alpha_max, config.layer) == (2.5, 3)
    assert json.loads(config.to_json_string())["layer"] == 3


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"llava-1\.5-7b"):
        get_preset("gpt-2")


def test_settings_of_a_call_default_to_the_config() -> None:
    config = RudderConfig(layer=1, alpha_max=3.0, k=2.0, pool="norm")
    for override in (None, True, {}, config):
        resolved = resolve_settings(config, override, 2)
        assert resolved.rows["alpha_max"] == [3.0, 3.0]
        assert resolved.pool == "norm"


def test_row_settings_come_in_every_form() -> None:
    config = RudderConfig(layer=1)
    for values in ([1.0, 2.0], (1, 2), torch.tensor([1.0, 2.0])):
        assert resolve_settings(config, {"alpha_max": values}, 2).rows["alpha_max"] == [1.0, 2.0]
    assert resolve_settings(config, {"alpha_max": torch.tensor(4.0)}, 2).rows["alpha_max"] == [4.0, 4.0]


BAD_OVERRIDES: list[tuple[Any, type[Exception], str]] = [
    ({"alpha_max": [1.0, 2.0, 3.0]}, ValueError, "3 values for a batch of 2"),
    ({"alpha_max": [1.0, -2.0]}, ValueError, "alpha_max"),
    ({"alpha_max": [1.0, "2"]}, ValueError, "alpha_max"),
    ({"alpha_max": [[1.0], [2.0]]}, ValueError, "alpha_max"),
    ({"strength": 3.0}, ValueError, "'strength' is not a RUDDER setting"),
    ({"mode": ["beta", "add"]}, ValueError, "mode"),
    ({"g_min": 0.9, "g_max": [1.0, 0.5]}, ValueError, r"g_min=0\.9 and g_max=0\.5"),
    ({"force": "yes"}, ValueError, "force"),
    ({"layer": 7}, ValueError, "layer cannot change within a call"),
    ([None, False], TypeError, r"rudder=\[None, False\]"),
    (3.0, TypeError, "rudder=3.0"),
    ("off", TypeError, "rudder='off'"),
]


@pytest.mark.parametrize(("override", "error", "message"), BAD_OVERRIDES)
def test_bad_overrides_are_refused(override: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_settings(RudderConfig(layer=1), override, 2)


def test_numbers_too_large_for_a_float_are_refused_by_name() -> None:
    for value in (10**400, -(10**5000)):
        with pytest.raises(ValueError, match="`alpha_max` is") as refusal:
            RudderConfig(alpha_max=value)
        assert len(str(refusal.value)) < 500
    with pytest.raises(ValueError, match="10000002 characters") as refusal:
        RudderConfig(mode="x" * 10_000_000)
    assert len(str(refusal.value)) < 500


def test_a_refused_setting_names_the_file_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "rudder", "layer": 1, "alpha_max": -1}')
    loaders: tuple[Any, ...] = (RudderConfig, AutoConfig, RudderForConditionalGeneration)
    for load in (each.from_pretrained for each in loaders):
        with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))} cannot be used.*`alpha_max` is -1"):
            load(tmp_path)
    with pytest.raises(ValueError, match=r"^RUDDER setting `k`"):
        RudderConfig.from_dict({"layer": 1}, k=-1.0)


def test_a_call_may_name_the_installed_layer_from_the_end() -> None:
    config = RudderConfig(layer=4)
    for asked in (4, -8):
        assert resolve_settings(config, {"layer": asked}, 1, layer=4, layers=12).rows["alpha_max"] == [20.0]
    for asked in (5, -7, -4):
        with pytest.raises(ValueError, match="cannot change within a call"):
            resolve_settings(config, {"layer": asked}, 1, layer=4, layers=12)


def test_unknown_settings_are_refused_with_a_suggestion_or_the_version_that_knows_them() -> None:
    with pytest.raises(ValueError, match=r"'alfa_max' is not a RUDDER setting. Did you mean 'alpha_max'"):
        RudderConfig(alfa_max=3.0)
    with pytest.raises(
        ValueError, match=r"'phase' is not a RUDDER setting of .*written by 99.0: install that version"
    ):
        RudderConfig(alpha_max=3.0, phase=2.0, rudder_version="99.0")


def test_every_setting_is_written_also_defaults(tmp_path: Path) -> None:
    RudderConfig().save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert {"layer", *CALL_SETTINGS, "rudder_version", "model_type"} <= set(stored)
    assert stored["model_type"] == "rudder"
    assert "torch_dtype" not in stored


def test_a_mistyped_setting_is_refused() -> None:
    config = RudderConfig()
    for wrong, right in (("alpha_mx", "alpha_max"), ("layr", "layer"), ("steer_first_tokens", "steer_first_token")):
        with pytest.raises(AttributeError, match=rf"{wrong}.*{right}"):
            setattr(config, wrong, 3)
    # What transformers and others put on a config is not RUDDER's business.
    config.torch_dtype = "float32"
    config.use_cache = True
    config._layer = 3
    for name, value in config.settings().items():
        setattr(config, name, value)


def test_settings_given_at_load_are_told_from_the_stored_ones() -> None:
    config = RudderConfig.from_dict({"layer": 1, "base_model_name_or_path": "org/base"}, alpha_max=3.0)
    assert config.given == {"alpha_max"}
    config.override({"k": 2.0})
    assert config.given == {"alpha_max", "k"}
    assert RudderConfig(alpha_max=3.0).given == frozenset()


@pytest.mark.parametrize("stored", [[1, 2], "rudder", None])
def test_what_is_no_dictionary_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match="have to be a JSON object"):
        RudderConfig.from_dict(stored)


def test_the_bases_config_answers_for_what_settings_lack() -> None:
    """As models with an encoder and a decoder need it: both questions are handed on."""

    class BaseConfig:
        image_token_id = 32000
        auto_map = "of the base"

        def get_text_config(self, decoder: Any, encoder: Any) -> Any:
            return "text", decoder, encoder

    config = RudderConfig()
    assert config.get_text_config(decoder=True) is config
    with pytest.raises(AttributeError, match="image_token_id"):
        _ = config.image_token_id
    config.describe_base(BaseConfig())
    assert config.get_text_config(decoder=True) == ("text", True, None)
    assert config.get_text_config(encoder=True) == ("text", None, True)
    assert config.image_token_id == 32000
    assert not hasattr(config, "auto_map")


def test_a_config_from_before_there_was_a_contrast_is_without(tmp_path: Path) -> None:
    RudderConfig(layer=3).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    old = {name: value for name, value in stored.items() if not name.startswith("contrast")}
    assert len(stored) - len(old) == 3
    file.write_text(json.dumps(old))
    config = RudderConfig.from_pretrained(tmp_path)
    assert (config.contrast, config.settings()) == (0.0, RudderConfig(layer=3).settings())
    config.override({"contrast": 1, "contrast_after": 8})
    config.save_pretrained(tmp_path)
    assert RudderConfig.from_pretrained(tmp_path).settings() == config.settings()
