"""`RudderConfig`: the settings of RUDDER for one base model, and the rules that every setting has to meet."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from .errors import logger
from .trust import check_base_name, check_revision
from .version import __version__

MODES = ("beta", "add")
_CHOICES = {"mode": MODES, "pool": ("mean", "norm"), "span": ("prompt", "text", "image")}

# Settings that may differ from row to row of a batch. The others shape the computation of the whole call.
STEERING_ROWS = ("alpha_max", "k", "c", "g_min", "g_max", "norm_cap")
ROW_SETTINGS = (*STEERING_ROWS, "contrast")
# Of the image-value contrast, which is not in the paper. Configs written before it was there mean these values.
CONTRAST_DEFAULTS: dict[str, Any] = {"contrast": 0.0, "contrast_first_layer": 2, "contrast_after": 1}
CALL_SETTINGS = (*STEERING_ROWS, "mode", "pool", "span", "steer_first_token", *CONTRAST_DEFAULTS)
# Everything that may be given when settings are loaded.
SETTING_NAMES = ("layer", *CALL_SETTINGS, "base_model_name_or_path", "base_model_revision", "calibration")

# What transformers itself reads from a config or puts into it, beside the fields of `PreTrainedConfig`.
_TRANSFORMERS_KEYS = (
    *("name_or_path", "model_type", "auto_map", "custom_pipelines", "torch_dtype", "num_labels", "per_layer_config"),
    *("attn_implementation", "experts_implementation", "output_attentions", "tie_last_hidden_states", "use_cache"),
    *("trust_remote_code", "transformers_needed"),
)
# What a stored config keeps of these. The rest (labels, dtype, quantisation, ...) would describe weights, of which
# there are none: the base model has its own.
_KEPT_KEYS: dict[str, type] = {
    "model_type": str,
    "architectures": list,
    "auto_map": dict,
    "custom_pipelines": dict,
    "transformers_version": str,
    "_commit_hash": str,
    "_name_or_path": str,
}
# Keys that transformers looks up in a config when it is written or judged: never answered from the base's config.
_NEVER_OF_BASE = ("quantization_config", "auto_map", "custom_pipelines", "per_layer_config", "transformers_weights")

_NUMBER_RANGES: dict[str, tuple[float, float, str]] = {
    # Wide, but such that float32 has room for what is computed from them.
    "alpha_max": (0.0, 1e6, "a number in [0, 1e6] (strength of the push, in units of the hidden state)"),
    "k": (0.0, 1e6, "a number in [0, 1e6] (sensitivity of the gate)"),
    "c": (-50.0, 50.0, "a number in [-50, 50] (concentration of the gate, typically 0.5 to 1.5)"),
    "g_min": (0.0, 1.0, "a number in [0, 1]"),
    "g_max": (0.0, 1.0, "a number in [0, 1]"),
    "norm_cap": (math.nextafter(0.0, 1.0), 1e6, "None or a number in (0, 1e6] (tau, the longest push)"),
    "contrast": (0.0, 100.0, "a number in [0, 100] (lambda of the image-value contrast; 0 switches it off)"),
}
# Whole numbers, with the least one that is allowed.
_COUNTS = {
    "contrast_first_layer": (0, "an integer from 0 on: the first decoder layer whose image values are contrasted"),
    "contrast_after": (1, "an integer from 1 on: the number of answer tokens before the image values are contrasted"),
}


def _setting_error(name: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"RUDDER setting `{name}` is {value!r}, but has to be {allowed}.")


def check_setting(name: str, value: Any) -> Any:
    """Check one scalar setting by name and return it as a plain Python value.

    Raises:
        ValueError: The value is of the wrong type or out of range; the message says what is allowed.
    """
    if name in _NUMBER_RANGES:
        low, high, allowed = _NUMBER_RANGES[name]
        if name == "norm_cap" and value is None:
            return None
        if not isinstance(value, Real) or isinstance(value, bool) or not low <= float(value) <= high:
            raise _setting_error(name, value, allowed)
        return float(value)
    if name in _CHOICES:
        if not isinstance(value, str) or value not in _CHOICES[name]:
            raise _setting_error(name, value, "one of " + ", ".join(map(repr, _CHOICES[name])))
        return value
    if name in ("steer_first_token", "force"):
        if not isinstance(value, bool):
            raise _setting_error(name, value, "True or False")
        return value
    if name in _COUNTS:
        least, allowed = _COUNTS[name]
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise _setting_error(name, value, allowed)
        return int(value)
    if name == "layer":
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise _setting_error(name, value, "an integer: 0-based decoder layer, negative counts from the end")
        return int(value)
    raise ValueError(f"{name!r} is not a RUDDER setting. Settings: layer, {', '.join(CALL_SETTINGS)}.")


def check_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings as [`check_setting`] does, and that the range of the gate is not empty."""
    checked = {name: check_setting(name, value) for name, value in values.items()}
    if checked["g_min"] > checked["g_max"]:
        raise ValueError(
            f"RUDDER needs g_min <= g_max, got g_min={checked['g_min']!r} and g_max={checked['g_max']!r}."
        )
    return checked


def _is_newer(version: str | None) -> bool:
    """Whether a config was written by a later version than this one."""
    numbers = [re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text or "") for text in (version, __version__)]
    theirs, ours = ([int(part or 0) for part in match.groups()] if match else [0, 0, 0] for match in numbers)
    return theirs > ours


def _checked_storage(stored: Any) -> dict[str, Any]:
    """The keys of a stored config that count: RUDDER's fields, the kept keys, and unknown keys, reported later."""
    if not isinstance(stored, Mapping):
        raise ValueError(f"RUDDER settings have to be a JSON object, not {type(stored).__name__}.")
    model_type = stored.get("model_type", RudderConfig.model_type)
    if model_type != RudderConfig.model_type:
        raise ValueError(f"The config describes a {model_type!r} model, it holds no RUDDER settings.")
    for name, kind in _KEPT_KEYS.items():
        if stored.get(name) is not None and not isinstance(stored[name], kind):
            raise _setting_error(name, stored[name], f"a {kind.__name__}, as transformers writes it")
    if not all(isinstance(name, str) for name in stored.get("architectures") or []):
        raise _setting_error("architectures", stored["architectures"], "a list of names, as transformers writes it")
    inherited = {*PreTrainedConfig.__dataclass_fields__, *_TRANSFORMERS_KEYS}
    own = set(RudderConfig.__dataclass_fields__) - inherited
    if isinstance(stored.get("base_model_name_or_path"), str):
        check_base_name(stored["base_model_name_or_path"], from_hub=False)
    return {
        name: value
        for name, value in stored.items()
        if name in own or name in _KEPT_KEYS or not (name.startswith("_") or name in inherited)
    }


class RudderConfig(PreTrainedConfig):
    r"""Settings of RUDDER and the base model they belong to. The defaults are the paper's for LLaVA-1.5-7B.

    Args:
        base_model_name_or_path (`str`, *optional*):
            Hub id or folder of the model that is steered.
        base_model_revision (`str`, *optional*):
            Commit of the base model that the settings were found with.
        layer (`int`, defaults to 30):
            0-based index of the decoder layer that is read and steered; negative counts from the end.
        mode (`str`, defaults to `"beta"`):
            `"beta"` scales the push per token by the Beta gate, `"add"` uses the constant strength `alpha_max`.
        alpha_max (`float`, defaults to 20.0):
            Strength of the push, in units of the hidden state.
        k (`float`, defaults to 5.0):
            Sensitivity of the gate to the alignment of hidden state and CARD.
        c (`float`, defaults to 1.0):
            Concentration of the gate.
        g_min, g_max (`float`, defaults to 0.05 and 1.0):
            Range that the gate is clamped to.
        pool (`str`, defaults to `"mean"`):
            How the updates of the prompt are pooled: `"mean"`, or `"norm"` (weighted by their length).
        span (`str`, defaults to `"prompt"`):
            Which prompt tokens are pooled: `"prompt"` (image and text, as in the paper), `"text"` or `"image"`.
        norm_cap (`float`, *optional*):
            Longest push allowed for a token (the paper's tau).
        steer_first_token (`bool`, defaults to `False`):
            Whether the last prompt position, which emits the first answer token, is steered too. The paper's
            algorithm only reads while it prefills; one-word answers can then never change.
        contrast (`float`, defaults to 0.0):
            Beyond the paper: lambda of the image-value contrast, see `core/contrast.py`. 0 switches it off.
        contrast_first_layer (`int`, defaults to 2):
            First decoder layer whose cached image values are contrasted.
        contrast_after (`int`, defaults to 1):
            Number of answer tokens that are emitted before the image values are contrasted, once.
        calibration (`dict`, *optional*):
            Where the settings come from and what they reached. `None` means that they are not calibrated.
        rudder_version (`str`, *optional*):
            Version of rudder_hf that wrote the config.
    """

    model_type: ClassVar[str] = "rudder"

    # Outside of the fields, so that they are neither compared nor written: the config of the loaded base, and the
    # names of the settings that were given at load.
    __slots__ = ("_base_config", "_given")

    base_model_name_or_path: str | None = None
    base_model_revision: str | None = None
    layer: int = 30
    mode: str = "beta"
    alpha_max: float = 20.0
    k: float = 5.0
    c: float = 1.0
    g_min: float = 0.05
    g_max: float = 1.0
    pool: str = "mean"
    span: str = "prompt"
    norm_cap: float | None = None
    steer_first_token: bool = False
    contrast: float = CONTRAST_DEFAULTS["contrast"]
    contrast_first_layer: int = CONTRAST_DEFAULTS["contrast_first_layer"]
    contrast_after: int = CONTRAST_DEFAULTS["contrast_after"]
    calibration: dict[str, Any] | None = None
    rudder_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        unknown = sorted(name for name in kwargs if not name.startswith("_") and name not in _TRANSFORMERS_KEYS)
        self.validate_settings()
        if unknown and not _is_newer(self.rudder_version):
            raise ValueError(f"{unknown} are no RUDDER settings. Settings: layer, {', '.join(CALL_SETTINGS)}.")
        if unknown:
            logger.warning(
                f"Settings written by rudder_hf {self.rudder_version} that this version ({__version__}) does not know "
                f"are ignored: {unknown}. Upgrade rudder_hf to use them."
            )
        super().__post_init__(**{name: value for name, value in kwargs.items() if name not in unknown})

    def __setattr__(self, name: str, value: Any) -> None:
        # transformers sets attributes of its own; a name that is almost that of a setting is a typing error.
        known = name.startswith("_") or hasattr(type(self), name)
        if not known and (close := difflib.get_close_matches(name, SETTING_NAMES, n=1, cutoff=0.8)):
            raise AttributeError(f"{name!r} is not a RUDDER setting. Did you mean {close[0]!r}?")
        super().__setattr__(name, value)

    def take(self, given: dict[str, Any]) -> None:
        """Take over settings that a user gave at load, checked as [`validate_settings`] does."""
        if "base_model_name_or_path" in given:
            # The stored revision is one of the stored base.
            given = {"base_model_revision": None, **given}
        for name, value in given.items():
            setattr(self, name, value)
        self.validate_settings()
        self._given = self.given | frozenset(given)

    @property
    def given(self) -> frozenset[str]:
        """Names of the settings that were given at load and are not the stored ones."""
        return getattr(self, "_given", frozenset())

    def describe_base(self, base_config: Any) -> None:
        """Answer for what RUDDER has no setting of (`text_config`, `image_token_id`, ...) from the base's config."""
        self._base_config = base_config

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """The text config of the base model; without a loaded base, this config."""
        described: Any = getattr(self, "_base_config", super())
        return described.get_text_config(decoder=decoder, encoder=encoder)

    def __getattr__(self, name: str) -> Any:
        # Reached for names that the config itself lacks. What transformers writes to config.json is not the base's.
        if not name.startswith("_") and name not in _NEVER_OF_BASE and hasattr(self, "_base_config"):
            return getattr(self._base_config, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def get_config_dict(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`, as `PreTrainedConfig` does.

        Raises:
            ValueError: The file holds something else than a JSON object.
        """
        refusal = ValueError(f"The config.json of {pretrained_model_name_or_path!s} is not a JSON object.")
        try:
            stored, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
            raise refusal from error
        if not isinstance(stored, dict):
            raise refusal
        return stored, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:  # type: ignore[override]
        """Make a config from what `config.json` holds, which may have been written by anyone.

        What is given beside it (`alpha_max=11.0`) is taken instead of what is stored.

        Raises:
            ValueError: It holds no RUDDER settings, or one that is not allowed, which is named.
        """
        loaded = super().from_dict(_checked_storage(config_dict), **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        # Keyword arguments override what is stored, and are set without passing through the constructor.
        config.take({name: kwargs[name] for name in SETTING_NAMES if name in kwargs})
        return loaded

    def settings(self) -> dict[str, Any]:
        """The settings by name: the layer and those of a call."""
        return {name: getattr(self, name) for name in ("layer", *CALL_SETTINGS)}

    def expression(self) -> str:
        """The settings as a line of Python that makes them again: the layer, and what differs from the defaults."""
        settings = self.settings()
        given = {
            name: value for name, value in settings.items() if name == "layer" or value != getattr(RudderConfig, name)
        }
        return f"RudderConfig({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def to_diff_dict(self) -> dict[str, Any]:
        """What is written to `config.json`: every setting, also where it is today's default, and the version."""
        written: dict[str, Any] = super().to_diff_dict()
        return written | self.settings() | {"rudder_version": __version__}

    def validate_settings(self) -> None:
        """Check every setting, as construction, loading and each `generate` do.

        Raises:
            ValueError: A setting is out of range or of the wrong type; it is named with what is allowed.
        """
        for name, value in check_settings(self.settings()).items():
            setattr(self, name, value)
        for name in ("base_model_name_or_path", "base_model_revision", "rudder_version"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise _setting_error(name, value, "a string or None")
        check_revision(self.base_model_revision)
        if self.calibration is not None and not isinstance(self.calibration, dict):
            raise _setting_error("calibration", self.calibration, "a dictionary or None")
