"""`RudderConfig`: the settings of RUDDER for one base model, and the rules that every setting has to meet."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from .settings import (
    CALL_SETTINGS,
    CONTRAST_DEFAULTS,
    MODEL_TYPE,
    check_gate_range,
    check_setting,
    setting_error,
    unknown_settings_error,
)
from .trust import check_base_name, check_revision
from .version import __version__

# Everything that may be given when settings are loaded.
SETTING_NAMES = ("layer", *CALL_SETTINGS, "base_model_name_or_path", "base_model_revision", "calibration")

# What transformers itself reads from a config or puts into it, beside the fields of `PreTrainedConfig`.
_TRANSFORMERS_KEYS = (
    *("name_or_path", "model_type", "auto_map", "custom_pipelines", "torch_dtype", "num_labels", "per_layer_config"),
    *("attn_implementation", "experts_implementation", "output_attentions", "tie_last_hidden_states", "use_cache"),
    *("trust_remote_code", "transformers_needed"),
)
# What a stored config keeps of these, if it has the form that transformers writes. The rest (labels, dtype,
# quantisation, ...) would describe weights, of which there are none: the base model has its own.
_KEPT_KEYS: dict[str, type] = {
    **{"auto_map": dict, "custom_pipelines": dict, "architectures": list},
    **{"transformers_version": str, "_commit_hash": str, "_name_or_path": str},
}
# The files of a model: beside settings it could not be loaded any more.
_MODEL_FILES = ("config.json", "adapter_config.json", "*model*.safetensors", "*model*.bin", "*.gguf")
# What a config holds beside settings.
_STORED: dict[str, type] = {"base_model_name_or_path": str, "rudder_version": str, "calibration": dict}
# Keys that transformers looks up in a config when it is written or judged: never answered from the base's config.
_NEVER_OF_BASE = ("quantization_config", "auto_map", "custom_pipelines", "per_layer_config", "transformers_weights")


def _settings_in(stored: Any) -> dict[str, Any]:
    """Return what counts of a stored config: RUDDER's fields, the kept keys, and unknown keys, which are refused."""
    if not isinstance(stored, Mapping):
        raise ValueError(f"RUDDER settings have to be a JSON object, not {type(stored).__name__}.")
    if stored.get("model_type", MODEL_TYPE) != MODEL_TYPE:
        raise ValueError(f"The config describes a {stored['model_type']!r} model, it holds no RUDDER settings.")
    if isinstance(stored.get("base_model_name_or_path"), str):
        check_base_name(stored["base_model_name_or_path"], from_hub=False)
    ignored = {*PreTrainedConfig.__dataclass_fields__, *_TRANSFORMERS_KEYS}
    found = {name: value for name, value in stored.items() if not (name.startswith("_") or name in ignored)}
    found |= {name: stored[name] for name, kind in _KEPT_KEYS.items() if isinstance(stored.get(name), kind)}
    if not all(isinstance(name, str) for name in found.get("architectures", ())):
        del found["architectures"]
    return found


class RudderConfig(PreTrainedConfig):
    """Settings of RUDDER and the base model they belong to. The defaults are the paper's for LLaVA-1.5-7B."""

    model_type: ClassVar[str] = MODEL_TYPE

    # Neither compared nor written: the config of the loaded base, and the names of settings given at load.
    __slots__ = ("_base_config", "_given")

    base_model_name_or_path: str | None = None  # Hub id or folder of the model that is steered
    base_model_revision: str | None = None  # commit of the base model that the settings were found with
    layer: int = 30  # decoder layer that is read and steered, from 0; negative counts from the end
    mode: str = "beta"  # "beta" scales the push per token by the Beta gate; "add" uses the constant `alpha_max`
    alpha_max: float = 20.0  # strength of the push, in units of the hidden state
    k: float = 5.0  # sensitivity of the gate to the alignment of hidden state and CARD
    c: float = 1.0  # concentration of the gate
    g_min: float = 0.05  # the gate is clamped to [g_min, g_max]
    g_max: float = 1.0
    pool: str = "mean"  # how the updates of the prompt are pooled: "mean", or "norm" (weighted by their length)
    span: str = "prompt"  # which prompt tokens are pooled: "prompt" (image and text, as in the paper), "text", "image"
    norm_cap: float | None = None  # longest push of a token (the paper's tau)
    # Whether the last prompt position, which emits the first answer token, is steered too. The paper's algorithm only
    # reads while it prefills: one-word answers then never change.
    steer_first_token: bool = False
    # Beyond the paper, see `core/contrast.py`: lambda of the image-value contrast (0 is off), the first decoder layer
    # whose cached image values are contrasted, and after how many answer tokens, once.
    contrast: float = CONTRAST_DEFAULTS["contrast"]
    contrast_first_layer: int = CONTRAST_DEFAULTS["contrast_first_layer"]
    contrast_after: int = CONTRAST_DEFAULTS["contrast_after"]
    calibration: dict[str, Any] | None = None  # where the settings come from and what they reached
    rudder_version: str | None = None  # of the rudder_hf that wrote the config

    def __post_init__(self, **kwargs: Any) -> None:
        check_gate_range(self.g_min, self.g_max)
        if unknown := [name for name in kwargs if not name.startswith("_") and name not in _TRANSFORMERS_KEYS]:
            raise unknown_settings_error(unknown, self.rudder_version)
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a setting when it is set, so that a call need not check it again."""
        if name == "layer" or name in CALL_SETTINGS:
            value = check_setting(name, value)
        elif name == "base_model_revision":
            check_revision(value)
        elif not isinstance(value, _STORED.get(name, object) | None):
            raise setting_error(name, value, f"a {_STORED[name].__name__} or None")
        # transformers sets attributes of its own; a name that is almost that of a setting is a typing error.
        known = name.startswith("_") or hasattr(type(self), name)
        if not known and (close := difflib.get_close_matches(name, SETTING_NAMES, n=1, cutoff=0.8)):
            raise AttributeError(f"{name!r} is not a RUDDER setting. Did you mean {close[0]!r}?")
        super().__setattr__(name, value)

    def override(self, given: Mapping[str, Any]) -> None:
        """Replace settings by those that a user gave at load; raise a ValueError for one that is not allowed."""
        if unknown := set(given) - set(SETTING_NAMES):
            raise unknown_settings_error(unknown)
        if "base_model_name_or_path" in given:
            # The stored revision is one of the stored base.
            given = {"base_model_revision": None, **given}
        for name, value in given.items():
            setattr(self, name, value)
        check_gate_range(self.g_min, self.g_max)
        self._given = self.given | frozenset(given)

    @property
    def given(self) -> frozenset[str]:
        """Return the names of the settings that were given at load and are not the stored ones."""
        return getattr(self, "_given", frozenset())

    def describe_base(self, base_config: Any) -> None:
        """Read attributes that RudderConfig lacks (`text_config`, `image_token_id`, ...) from the base's config."""
        self._base_config = base_config

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """Return the text config of the base model; without a loaded base, this config."""
        described: Any = getattr(self, "_base_config", super())
        return described.get_text_config(decoder=decoder, encoder=encoder)

    def __getattr__(self, name: str) -> Any:
        # Reached for names that the config itself lacks.
        if not name.startswith("_") and name not in _NEVER_OF_BASE and hasattr(self, "_base_config"):
            return getattr(self._base_config, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def get_config_dict(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json` as `PreTrainedConfig` does; raise a ValueError if it is not a JSON object."""
        stored: Any = None
        # What transformers stumbles over in other JSON.
        with suppress(TypeError, AttributeError, KeyError, RecursionError):
            stored, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if not isinstance(stored, dict):
            raise ValueError(f"The config.json of {pretrained_model_name_or_path!s} is not a JSON object.")
        # For messages: `AutoConfig` hands the source on to `from_dict` as well.
        return stored, {"name_or_path": str(pretrained_model_name_or_path), **kwargs}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:  # type: ignore[override]
        """Make a config from what `config.json` holds, and settings given beside it (`alpha_max=11.0`).

        The file may have been written by anyone: what is not allowed raises a ValueError that names the source.
        """
        given = {name: kwargs.pop(name) for name in SETTING_NAMES if name in kwargs}
        try:
            loaded = super().from_dict(_settings_in(config_dict), **kwargs)
        except ValueError as error:
            source = kwargs.get("name_or_path")
            raise ValueError(f"The settings in {source} cannot be used: {error}" if source else str(error)) from error
        (loaded[0] if isinstance(loaded, tuple) else loaded).override(given)
        return loaded

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write `config.json` as `PreTrainedConfig` does; raise a ValueError if the folder holds a model."""
        check_settings_folder(save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def settings(self) -> dict[str, Any]:
        """Return the settings by name: the layer and those of a call."""
        return {name: getattr(self, name) for name in ("layer", *CALL_SETTINGS)}

    def expression(self) -> str:
        """Write the settings as Python that makes them again: the layer, and what differs from the defaults."""
        shown = [
            f"{name}={value!r}"
            for name, value in self.settings().items()
            if name == "layer" or value != getattr(RudderConfig, name)
        ]
        return f"RudderConfig({', '.join(shown)})"

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to `config.json`: every setting, also where it is the default, and the version."""
        return {**super().to_diff_dict(), **self.settings(), "rudder_version": __version__}


def is_settings(text: str) -> bool:
    """Return whether this is the text of a `config.json` with RUDDER settings."""
    with suppress(ValueError):
        stored = json.loads(text)
        return isinstance(stored, dict) and stored.get("model_type") == MODEL_TYPE
    return False


def check_settings_folder(folder: str | os.PathLike[str]) -> None:
    """Raise for a folder that settings must not be written into: a file in its place, or a model in it."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder to write the settings into.")
    stored = folder / "config.json"
    if stored.is_file() and is_settings(stored.read_text(encoding="utf-8", errors="replace")):
        return
    if foreign := [path.name for pattern in _MODEL_FILES for path in sorted(folder.glob(pattern))]:
        raise ValueError(
            f"{folder} holds something else than RUDDER settings ({', '.join(foreign[:3])}), which settings would "
            "overwrite or make unusable. Choose another folder for the settings."
        )
