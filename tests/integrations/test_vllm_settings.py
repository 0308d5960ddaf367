"""Settings of a vLLM engine and its requests, and its entry point. vLLM itself is tested by `python -m tests.vllm`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf import RudderConfig, write_repo
from rudder_hf.core.call import resolve_settings
from rudder_hf.core.settings import CALL_SETTINGS
from rudder_hf.integrations.vllm import settings as vllm_settings
from rudder_hf.integrations.vllm.settings import (
    REQUEST_SETTINGS,
    EngineSettings,
    check_base,
    check_keys,
    decide,
    engine_settings,
    other_files,
    request_settings,
)
from rudder_hf.runtime.environment import files_digest
from tests.support.serving import ROOT, with_package

LLAVA = "llava-hf/llava-1.5-7b-hf"
ENGINE = engine_settings({"layer": 3, "alpha_max": 8.0, "k": 4.0})


def test_a_dictionary_of_settings() -> None:
    assert (ENGINE.config.layer, ENGINE.config.alpha_max, ENGINE.config.g_min) == (3, 8.0, RudderConfig().g_min)
    assert ENGINE.steer_by_default
    assert engine_settings(json.loads(json.dumps(ENGINE.to_dict()))) == ENGINE


def test_a_settings_repository_and_what_overrides_it(tmp_path: Path) -> None:
    write_repo(RudderConfig(layer=-2, alpha_max=7.0, span="text"), tmp_path)
    assert engine_settings(str(tmp_path)).config.alpha_max == 7.0
    changed = engine_settings({"settings": str(tmp_path), "alpha_max": 2.0, "steer_by_default": False})
    assert (changed.config.layer, changed.config.span, changed.config.alpha_max) == (-2, "text", 2.0)
    assert not changed.steer_by_default


def test_repositories_without_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere' cannot be read"):
        engine_settings(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(ValueError, match="holds a model, not RUDDER settings"):
        engine_settings(str(tmp_path))


def test_what_becomes_of_a_request() -> None:
    image, audio = SimpleNamespace(modality="image"), SimpleNamespace(modality="audio")
    assert decide(ENGINE, None, [audio, image]) == ("steered", request_settings(ENGINE, None))
    assert decide(ENGINE, None, [audio]) == ("no_image", None)
    assert decide(ENGINE, {"rudder": False}, [image]) == ("unsteered", None)
    assert decide(EngineSettings(ENGINE.config, steer_by_default=False), None, [image]) == ("unsteered", None)
    assert decide(ENGINE, {"rudder_force": 1}, [])[0] == "steered"


ALMOST = ["ruder", "RUDDER", "Rudder", "rudder-alpha_max", "rudderless", "ruder_alpha_max"]


@pytest.mark.parametrize("name", ALMOST)
def test_a_key_that_is_almost_rudders(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' in the request is not understood"):
        request_settings(ENGINE, {name: 1})


@pytest.mark.parametrize("name", [*ALMOST, "rudder_layer", "rudder_settings", "rudder_hf", "rudder_alpha_max"])
def test_an_engine_has_one_key(name: str) -> None:
    """vLLM would ignore others without an error, and the engine would answer unsteered."""
    with pytest.raises(ValueError, match=f"'{name}' in additional_config is not understood"):
        check_keys(["cudagraph", name], of_engine=True)


@pytest.mark.parametrize("name", ["alpha_max", "k", "layer", "mode", "force", "contrast", "steer_first_token"])
def test_a_setting_without_its_prefix(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' has no effect: RUDDER takes 'rudder_{name}'"):
        request_settings(ENGINE, {name: 1})
    check_keys([name], of_engine=True)  # another plugin's


def test_keys_of_others_are_ignored() -> None:
    others = ["rudder", "runner", "render", "under", "kv_transfer_params", ""]
    check_keys([*others, "rudder_alpha_max"])
    check_keys(others, of_engine=True)


@pytest.mark.parametrize(
    ("base", "served", "fits"),
    [
        (LLAVA, LLAVA, True),
        (LLAVA, "/models/llava-1.5-7b-hf", True),
        (LLAVA, "/cache/hub/models--llava-hf--llava-1.5-7b-hf/snapshots/0123", True),
        (LLAVA, "llava-hf/llava-1.5-13b-hf", False),
        (LLAVA, "HuggingFaceM4/idefics2-8b", False),
        (LLAVA, "/models", False),
        ("/models/base", "/models/base/weights/..", True),
        ("/models/base", "/models/other", False),
        (None, "anything", True),
    ],
)
def test_settings_of_another_model(base: str | None, served: str, fits: bool, tmp_path: Path) -> None:
    write_repo(RudderConfig(layer=2, base_model_name_or_path=base), tmp_path)
    if fits:
        check_base(engine_settings(str(tmp_path)), served)
    else:
        with pytest.raises(ValueError, match=f"are for '{base}', but the engine serves"):
            check_base(engine_settings(str(tmp_path)), served)
    check_base(engine_settings({"settings": str(tmp_path), "other_base": True}), served)


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        (7, "has to be the id or folder"),
        (None, "Leave it out for an engine without RUDDER"),
        ({}, "needs the layer"),
        ({"layer": 1, "alpha": 3}, "'alpha' is not a RUDDER setting"),
        ({"layer": 1, "alpha_max": True}, "`alpha_max` is True"),
        ({"layer": 1, "g_min": 0.8, "g_max": 0.2}, "g_min <= g_max"),
        ({"layer": 1, "steer_by_default": "yes"}, "steer_by_default"),
        ({"layer": 1, "other_base": 1}, "other_base"),
        ({"settings": 3}, '"settings" is 3'),
    ],
)
def test_bad_engine_settings(given_settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine_settings(given_settings)


def test_a_request_that_says_nothing() -> None:
    for silent in (None, {}, {"kv_transfer_params": {}}):
        settings = request_settings(ENGINE, silent)
        assert settings is not None
        record = {name: value[0] if isinstance(value, list) else value for name, value in settings.record().items()}
        assert record == {name: getattr(ENGINE.config, name) for name in CALL_SETTINGS}
        assert request_settings(EngineSettings(ENGINE.config, steer_by_default=False), silent) is None


@pytest.mark.parametrize("no", [False, 0, 0.0, "false"])
def test_a_request_that_says_no(no: Any) -> None:
    assert request_settings(ENGINE, {"rudder": no}) is None


def test_asking_is_enough_where_steering_is_not_the_default() -> None:
    quiet = EngineSettings(ENGINE.config, steer_by_default=False)
    for asked in ({"rudder": True}, {"rudder_alpha_max": 8.0}):
        assert request_settings(quiet, asked) == request_settings(ENGINE, None)


@given(
    alpha_max=st.floats(0, 1e6),
    gates=st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted),
    first=st.booleans(),
    cap=st.none() | st.floats(0.1, 1e6),
    mode=st.sampled_from(["beta", "add"]),
)
def test_flat_and_nested_settings_mean_the_same(
    alpha_max: float, gates: list[float], first: bool, cap: float | None, mode: str
) -> None:
    chosen = {
        "alpha_max": alpha_max, "g_min": gates[0], "g_max": gates[1], "steer_first_token": first, "norm_cap": cap,
        "mode": mode,
    }  # fmt: skip
    nested = request_settings(ENGINE, {"rudder": chosen})
    flat = request_settings(ENGINE, {f"rudder_{name}": value for name, value in chosen.items()})
    assert nested == flat
    assert nested is not None
    row = nested.push_rows()[0]
    assert row[0] == alpha_max
    assert row[3:5] == ((1.0, 1.0) if mode == "add" else tuple(gates))
    assert row[5] == (math.inf if cap is None else cap)


@pytest.mark.parametrize(
    ("extra_args", "said"),
    [
        ({"rudder_alpha": 3}, "'alpha' is not a RUDDER setting of a request"),
        ({"rudder": {"alpha": 3}}, "'alpha' is not a RUDDER setting of a request"),
        ({"rudder": 7}, "`rudder` is 7"),
        ({"rudder": None}, "`rudder` is None"),
        ({"rudder": [False]}, "`rudder` is"),
        ({"rudder_alpha_max": "8"}, "`alpha_max` is '8'"),
        ({"rudder_alpha_max": math.nan}, "`alpha_max` is nan"),
        ({"rudder_g_min": 0.9, "rudder_g_max": 0.5}, "g_min <= g_max"),
        ({"rudder": False, "rudder_g_min": 2}, "`g_min` is 2"),
        ({"rudder_layer": 1}, "for the whole engine"),
        ({"rudder_pool": "norm"}, "for the whole engine"),
        ({"rudder_span": "image"}, "for the whole engine"),
        ({"rudder_span": "everything"}, "`span` is 'everything'"),
        ({"rudder_force": 2}, "`force` is 2"),
        ({"rudder_steer_first_token": "perhaps"}, "`steer_first_token` is 'perhaps'"),
        ({"rudder_steer_first_token": 2}, "`steer_first_token` is 2"),
        ({"rudder_alpha_max": True}, "`alpha_max` is True"),
        ({"rudder": {"k": False}}, "`k` is False"),
        ({"rudder_alpha_max": [3.0]}, r"`alpha_max` is \[3.0\]"),
    ],
)
def test_bad_requests(extra_args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        request_settings(ENGINE, extra_args)


def test_a_request_is_checked_against_the_engine() -> None:
    with pytest.raises(ValueError, match="g_min <= g_max"):
        request_settings(engine_settings({"layer": 1, "g_max": 0.4}), {"rudder_g_min": 0.5})
    # The engine's own values may be repeated.
    assert request_settings(ENGINE, {"rudder_layer": 3, "rudder_span": "prompt"}) == request_settings(ENGINE, None)
    assert "layer" not in REQUEST_SETTINGS


def test_the_contrast_is_refused_by_name() -> None:
    assert engine_settings({"layer": 3, "contrast": 0.0}).config.contrast == 0.0
    for name, value in (("contrast", 0.6), ("contrast_after", 3), ("contrast_first_layer", 1)):
        with pytest.raises(ValueError, match=f"`{name}` is {value}, but vLLM shares"):
            engine_settings({"layer": 3, name: value})
        with pytest.raises(ValueError, match=f"`{name}` is {value}, but vLLM shares"):
            request_settings(ENGINE, {f"rudder_{name}": value})


@pytest.mark.parametrize("wrong", [{"rudder_alpha": 1}, {"rudderless": 1}, {"alpha_max": 1}])
def test_messages_offer_what_works(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="steer_first_token") as request:
        request_settings(ENGINE, wrong)
    with pytest.raises(ValueError, match="steer_first_token") as engine:
        engine_settings({"layer": 1, "alpha": 1})
    assert "contrast" not in str(request.value) + str(engine.value)


def test_equal_requests_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front end, the scheduler and the runner ask."""
    resolve = Mock(wraps=resolve_settings)
    monkeypatch.setattr(vllm_settings, "resolve_settings", resolve)
    engine = engine_settings({"layer": 3, "alpha_max": 8.0})
    first = request_settings(engine, {"rudder_alpha_max": 3.0})
    for _ in range(4):
        assert request_settings(engine, {"rudder_alpha_max": 3.0}) is first
    assert resolve.call_count == 1
    assert request_settings(engine, {"rudder_alpha_max": 4.0}) != first
    # Equal in Python, but not the same setting.
    for steer in (1, True):
        assert request_settings(engine, {"rudder_steer_first_token": steer}).steer_first_token
    with pytest.raises(ValueError, match="`k` is True"):
        request_settings(engine, {"rudder_k": True})
    assert request_settings(engine, {"rudder_k": 1}).rows["k"] == [1.0]


def test_where_the_settings_come_from(tmp_path: Path) -> None:
    """The log and the metric name the repository and its revision, also in processes that do not read it again."""
    write_repo(RudderConfig(layer=2), tmp_path)
    found = engine_settings({"settings": str(tmp_path), "alpha_max": 3.0})
    (tmp_path / "config.json").unlink()
    for settings in (found, engine_settings(json.loads(json.dumps(found.to_dict())))):
        assert (settings.repository, settings.revision) == (str(tmp_path), "")
        assert f"settings: {tmp_path}" in str(settings)
    assert "alpha_max=8.0" in str(ENGINE)
    assert "settings: given one by one" in str(ENGINE)
    assert "settings: org/name abc" in str(EngineSettings(ENGINE.config, repository="org/name", revision="abc"))


def test_other_files_than_those_of_the_record(tmp_path: Path) -> None:
    base = tmp_path / "snapshots" / "0123"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")

    def told(recorded: str | None, commit: str | None, served: str = str(base), digest: str | None = None) -> str:
        record = None if digest is None else {"model": {"name": LLAVA, "revision": digest}}
        config = RudderConfig(base_model_name_or_path=LLAVA, base_model_revision=recorded, calibration=record)
        return other_files(config, served, commit)

    digest = files_digest(base)
    assert told(None, None, digest=digest) == ""
    (base / "config.json").write_text('{"changed": 1}')
    assert f"found with {LLAVA} at {digest}, but {base} is at files-sha256:" in told(None, None, digest=digest)
    one, two = "1" * 40, "2" * 40
    assert told(one, one, served=LLAVA) == ""
    assert f"but {LLAVA} is at {two}" in told(one, two, served=LLAVA)
    assert "is at 0123" in told(one, None)
    # Where nothing is recorded, or nothing can be compared, nothing is said.
    assert told(None, two, served=LLAVA) == told(one, None, served="/models/x") == ""
    assert told(None, one, served=LLAVA, digest="unknown") == ""


# How vLLM finds the plugin: nothing is imported before the entry point is called, and errors are raised


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], env=with_package(), capture_output=True, text=True)


def test_the_entry_point_imports_nothing() -> None:
    """vLLM goes on without a plugin that cannot be imported, which would be to answer unsteered."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, function = points["vllm.general_plugins"]["rudder_hf"].split(":")
    done = python(
        f"import sys; old = set(sys.modules); from {module} import {function}; print(set(sys.modules) - old)"
    )
    assert done.stdout.strip() == str({module}), done.stderr


def test_errors_of_importing_are_raised_by_the_call() -> None:
    moved = "import sys; sys.modules['transformers'] = None; from rudder_hf_vllm import register; print('loaded')"
    done = python(f"{moved}; register()")
    assert done.stdout == "loaded\n"
    assert done.stderr.strip().splitlines()[-1].startswith("RuntimeError: RUDDER cannot be imported beside this vLLM")
    assert "pip uninstall rudder-hf" in done.stderr
