"""Settings from strangers: a config.json can name one base model, and do nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from rudder_hf.core.trust import check_base_name, check_revision, is_on_hub

SETTINGS = {"model_type": "rudder", "alpha_max": 3.0}
ESCAPING = [
    *("../secret", "..", ".", "./base", "a/../b", "a/b/c", "base/", "~/model", "~root/model", "", " ", "a b", "-x/y"),
    *("file:///etc", "https://example.com/model", "hf://org/name", "org/name@main", "org/name?x=1", "org/na#me"),
    *("//host/share", "\\\\host\\share", "..\\secret", "org/name\n", "a\x00b", "/models/../etc", "/a//b", "/a\nb"),
    *("org/x--y", "org/name.git", "org--name", "$HOME", "${HOME}/x", "x" * 200),
]
HUB_IDS = ["org/name", "llava-hf/llava-1.5-7b-hf", "gpt2", "Org_1/na.me-2"]

# What happens in this process while it is watched. An audit hook cannot be taken off again, so there is one.
_watched: list[tuple[str, str]] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in ("open", "socket.connect", "subprocess.Popen", "os.system", "os.exec"):
        _watched.append((event, str(arguments[0])))


sys.addaudithook(_audit)


@contextmanager
def watching() -> Iterator[list[tuple[str, str]]]:
    """Files that are opened, connections and processes."""
    global _watched
    _watched = []
    try:
        yield _watched
    finally:
        _watched = None


def stored(folder: Path, content: Any) -> Path:
    """A folder with a config.json."""
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("name", ESCAPING)
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    for from_hub in (True, False):
        with pytest.raises(ValueError, match="base_model_name_or_path"):
            check_base_name(name, from_hub=from_hub)
    folder = stored(tmp_path, {"model_type": "rudder", "base_model_name_or_path": name})
    with pytest.raises(ValueError, match="base_model_name_or_path"):
        RudderConfig.from_pretrained(folder)
    with pytest.raises(ValueError, match="base_model_name_or_path") as caught:
        RudderForConditionalGeneration.from_pretrained(folder)
    # An empty name is told as a missing one; a long one is cut.
    assert not name or repr(name)[:200] in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_only_settings_in_a_folder_may_name_a_folder(tmp_path: Path) -> None:
    check_base_name(str(tmp_path), from_hub=False)
    with pytest.raises(ValueError, match="from the Hub") as caught:
        check_base_name(str(tmp_path), from_hub=True)
    assert "full path of a folder" not in str(caught.value)
    with pytest.raises(ValueError, match="full path of a folder"):
        check_base_name("../base", from_hub=False)
    for name in HUB_IDS:
        check_base_name(name, from_hub=True)
        check_base_name(name, from_hub=False)


@pytest.mark.parametrize("revision", ["../x", "a..b", "/main", "", "main ", "a//b", "-x", "a\nb", "x" * 300, 3, "a?b"])
def test_revisions_that_lead_elsewhere_are_refused(revision: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="base_model_revision"):
        check_revision(revision)
    with pytest.raises(ValueError, match="base_model_revision"):
        RudderConfig.from_pretrained(stored(tmp_path, {"model_type": "rudder", "base_model_revision": revision}))


@pytest.mark.parametrize("revision", [None, "main", "refs/pr/3", "v1.0+x", "0" * 40, "feature/a_b"])
def test_revisions_of_git_are_taken(revision: str | None) -> None:
    check_revision(revision)


def test_a_folder_of_that_name_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_on_hub("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert not is_on_hub("org/name")


def test_what_describes_weights_does_not_pass(tmp_path: Path) -> None:
    """A stranger's config sets nothing of how the base is loaded."""
    hostile = {
        "dtype": "float16",
        "torch_dtype": "float16",
        "_attn_implementation": "other-org/kernel",
        "attn_implementation": "other-org/kernel",
        "id2label": {"x": 1},
        "trust_remote_code": True,
        "_base_config": {"model_type": "llava"},
        "__class__": "os",
    }
    for name in ("text_config", "quantization_config", "phase", "alfa_max"):
        with pytest.raises(ValueError, match=f"'{name}' is not a RUDDER setting"):
            RudderConfig.from_pretrained(stored(tmp_path, {**SETTINGS, **hostile, name: {"a": 1}}))
    plain = RudderConfig.from_pretrained(stored(tmp_path, SETTINGS))
    loaded = RudderConfig.from_pretrained(stored(tmp_path, {**SETTINGS, **hostile}))
    assert loaded.to_dict() == plain.to_dict()
    assert loaded.dtype is None
    assert type(loaded) is RudderConfig


@pytest.mark.parametrize(
    "content", ["[]", "[1, 2]", '"rudder"', "3", "null", "true", "{", "", "\ufeff{}", "[" * 5000, '{"a": NaN', "\x00"]
)
def test_what_is_no_json_object_is_refused(content: str, tmp_path: Path) -> None:
    folder = stored(tmp_path, content)
    for load in (RudderConfig.from_pretrained, RudderForConditionalGeneration.from_pretrained):
        with pytest.raises((ValueError, OSError), match=r"config|JSON"):
            load(folder)


KEYS = st.sampled_from(
    [
        *RudderConfig.__dataclass_fields__,
        *("model_type", "auto_map", "custom_pipelines", "torch_dtype", "quantization_config", "_name_or_path"),
        *("_commit_hash", "text_config", "num_labels", "per_layer_config", "trust_remote_code", "attribute_map"),
        *("sub_configs", "to_dict", "override", "__class__", "__init__", "configuration_files", "_base_config"),
        *("attn_implementation", "_attn_implementation", "name_or_path", "given", "layer_types", "rope_scaling"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*ESCAPING, *HUB_IDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | KEYS, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.builds(
    lambda start, more: {**start, **more},
    st.sampled_from([{}, {"model_type": "rudder"}, {**SETTINGS, "base_model_name_or_path": "org/name"}]),
    st.dictionaries(KEYS | st.text(max_size=8), JSON, max_size=4),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=CONFIGS | JSON)
def test_any_json_gives_settings_or_a_clean_error(tmp_path: Path, config: Any) -> None:
    folder = stored(tmp_path, config)
    try:
        loaded = RudderConfig.from_pretrained(folder)
    except (ValueError, OSError):
        return
    # What was accepted is valid, and survives a round trip.
    RudderConfig(**loaded.settings())
    loaded.save_pretrained(tmp_path / "again")
    again = RudderConfig.from_pretrained(tmp_path / "again")
    for name in ("layer", "alpha_max", "k", "mode", "base_model_name_or_path", "base_model_revision"):
        assert getattr(again, name) == getattr(loaded, name)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=CONFIGS)
def test_any_json_reads_nothing_but_its_folder(tmp_path: Path, config: Any) -> None:
    """Loading a model from it opens no other file, starts no process, and connects to nothing when told not to."""
    folder, cache = stored(tmp_path, config), tmp_path / "cache"
    # The libraries themselves, and the user's token for the Hub.
    allowed = (str(tmp_path), sys.prefix, sys.base_prefix, constants.HF_HOME)
    with watching() as seen, pytest.raises((ValueError, OSError)):
        RudderForConditionalGeneration.from_pretrained(folder, local_files_only=True, cache_dir=cache)
    outside = [
        (event, name) for event, name in seen if event != "open" or not (name.startswith(allowed) or name.isdigit())
    ]
    assert outside == []
