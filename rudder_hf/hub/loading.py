"""Load settings, the model that they name, its processor: which argument is for whom, which revision, how trusted.

One set of rules holds for all that loads: settings from the Hub lead to a model on the Hub and to nothing else, and
trust in settings is not trust in the base that they name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.utils import cached_file, find_adapter_config_file, is_peft_available
from transformers.utils.hub import extract_commit_hash

from ..core.configuration import SETTING_NAMES, RudderConfig
from ..core.trust import check_base_name, check_revision, is_hub_id, is_on_hub

# Arguments about the repository with the settings, or from the Auto classes: never for the base.
_OURS = ("revision", "subfolder", "code_revision", "variant")
_DROPPED = ("trust_remote_code", "base_trust_remote_code", "adapter_kwargs", "_from_auto", "_from_pipeline")
# Arguments about the way to the Hub, which is the same for both.
_SHARED = ("cache_dir", "token", "local_files_only", "force_download", "proxies")
# For `cached_file`: None for a file that is not to be had; the reason is reported where files are loaded.
QUIET = {f"_raise_exceptions_for_{kind}": False for kind in ("missing_entries", "gated_repo", "connection_errors")}
# Arguments for the base that AutoModel puts into the config that it loads, which is ours and not the base's.
_SWALLOWED = ("attn_implementation", "experts_implementation", "output_attentions", "output_hidden_states")


@dataclass
class LoadArguments:
    """The arguments of a `from_pretrained` call on settings, each with its owner."""

    settings: dict[str, Any] = field(default_factory=dict)  # RUDDER settings to override
    ours: dict[str, Any] = field(default_factory=dict)  # for the repository that holds the settings
    shared: dict[str, Any] = field(default_factory=dict)  # for both repositories (`token`, `cache_dir`, ...)
    base: dict[str, Any] = field(default_factory=dict)  # for loading the base
    base_trust: bool = False  # whether code of the base's repository may run: not implied by trust in the settings'

    @classmethod
    def sort(cls, kwargs: Mapping[str, Any], config: Any = None) -> LoadArguments:
        """Give each argument to its owner; `config` holds some if an Auto class has loaded it."""
        found = cls(base_trust=bool(kwargs.get("base_trust_remote_code")))
        if config is not None:
            swallowed = {name: getattr(config, f"_{name}", getattr(config, name, None)) for name in _SWALLOWED}
            found.base = {name: value for name, value in swallowed.items() if value}
        for name, value in kwargs.items():
            if name in SETTING_NAMES:
                found.settings[name] = value
            elif name in _OURS:
                found.ours[name] = value
            elif name in _SHARED:
                found.shared[name] = value
            elif name not in (*_DROPPED, "_commit_hash"):
                found.base[name] = value
        return found


def full_name(name: str) -> str:
    """Return a name that means the same in every working directory: the full path of a folder, the id otherwise."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def name_in_full(config: RudderConfig) -> None:
    """Let settings name a base in a folder by its full path, and so the record of a calibration on its files."""
    if config.base_model_name_or_path is None:
        return
    config.base_model_name_or_path = base = full_name(config.base_model_name_or_path)
    record = config.calibration or {}
    model = record["model"] if isinstance(record.get("model"), Mapping) else {}
    if str(model.get("revision")).startswith("files-sha256:") and full_name(str(model.get("name"))) == base:
        config.calibration = {**record, "model": {**model, "name": base}}


def _check_place(name: str) -> None:
    """Raise a FileNotFoundError for a path to nowhere. What has the form of an id may be on the Hub."""
    if not is_hub_id(name) and not os.path.exists(name):
        raise FileNotFoundError(
            f"There is no folder {name!r}. Give a folder that exists, or the id of a repository on the Hub "
            "('namespace/name')."
        )


def check_names_model(name: str) -> None:
    """Raise for what a user named as a base: a FileNotFoundError for a path to nowhere, a ValueError for settings."""
    _check_place(name)
    if os.path.isfile(os.path.join(name, "config.json")) and read_settings(name) is not None:
        raise ValueError(
            f"{name} holds RUDDER settings, not a model. They name their base, and both are loaded by "
            f"RudderForConditionalGeneration.from_pretrained({name!r})."
        )


def read_settings(source: str | Path, **location: Any) -> RudderConfig | None:
    """Read the settings in a folder or repository (at `revision`, with `token`, ...); None if it holds a model."""
    _check_place(str(source))
    stored, rest = RudderConfig.get_config_dict(source, **location)
    if not stored:
        raise ValueError(f"Cannot load {str(source)!r}: there is no config.json in it.")
    if stored.get("model_type") != RudderConfig.model_type:
        return None
    return RudderConfig.from_dict(stored, name_or_path=rest["name_or_path"])  # type: ignore[no-any-return]


def load_settings(source: str | Path, arguments: LoadArguments, config: Any = None) -> RudderConfig:
    """Read settings from a folder or the Hub, put those on top that the user gave, and check what they name.

    Settings that an Auto class has loaded already are given as `config` and used instead of reading.
    """
    if config is None:
        config = read_settings(source, **arguments.ours, **arguments.shared)
        if config is None:
            raise ValueError(
                f"{source!s} holds a model, not RUDDER settings. To steer it: "
                f"from_base({str(source)!r}, RudderConfig(layer=..., alpha_max=..., k=...))."
            )
    # By its type: a config that came with the code of a repository is of a class of its own.
    if getattr(config, "model_type", None) != RudderConfig.model_type:
        raise TypeError(f"config is {config!r}, but has to be a RudderConfig.")
    settings: RudderConfig = config
    settings.override(arguments.settings)
    check_named_base(settings, source)
    return settings


def check_named_base(settings: RudderConfig, source: str | Path) -> None:
    """Raise a ValueError for settings that name no base, or one that settings from this source may not lead to."""
    if not settings.base_model_name_or_path:
        raise ValueError(
            f"The settings in {source!s} name no base model (base_model_name_or_path). "
            "Load the base yourself and use RudderForConditionalGeneration.from_base(model, config)."
        )
    if "base_model_name_or_path" not in settings.given:
        # A name that the user typed may lead anywhere; one that came with the settings may not.
        check_base_name(settings.base_model_name_or_path, from_hub=not os.path.exists(source))


def resolve_commit(name: str, revision: str | None, **hub_kwargs: Any) -> str | None:
    """Return the commit of a model's branch or tag on the Hub, or of its default branch; `revision` if unknown."""
    path = cached_file(name, "config.json", revision=revision, **hub_kwargs, **QUIET)
    return extract_commit_hash(path, None) or revision


def locate_base(config: RudderConfig, arguments: LoadArguments) -> dict[str, Any]:
    """Return keyword arguments that lead any `from_pretrained` to the files of the base that settings name.

    They are those for both repositories and, where the Hub or the cache knows the base, its revision as a commit. A
    base that is an adapter or holds settings itself would lead on to another one, and is refused.
    """
    name, location = str(config.base_model_name_or_path), dict(arguments.shared)
    _check_place(name)
    check_revision(config.base_model_revision)
    if is_on_hub(name):
        hub_kwargs = {key: location[key] for key in ("token", "cache_dir", "local_files_only") if key in location}
        revision = resolve_commit(name, config.base_model_revision, **hub_kwargs)
        location |= {} if revision is None else {"revision": revision}
    whole = os.path.isfile(os.path.join(name, "config.json"))
    if is_peft_available() and not whole and find_adapter_config_file(name, **location) is not None:
        # transformers would go on to whatever model the adapter's author named.
        raise ValueError(
            f"{name!r} holds a PEFT adapter, not a model: load the model, put the adapter on it with PEFT, and use "
            "RudderForConditionalGeneration.from_base(model, config)."
        )
    where = {key: value for key, value in arguments.base.items() if key == "subfolder"}
    if RudderConfig.get_config_dict(name, **location, **where)[0].get("model_type") == RudderConfig.model_type:
        raise ValueError(
            f"The settings lead to {name!r} as their base model, but that holds RUDDER settings itself. "
            "base_model_name_or_path has to name the model that is steered."
        )
    return location


def load_base(config: RudderConfig, arguments: LoadArguments, *args: Any) -> Any:
    """Load the model that the settings name, and write into them which commit that was."""
    name, location = str(config.base_model_name_or_path), locate_base(config, arguments)
    try:
        loaded = AutoModelForImageTextToText.from_pretrained(
            name, *args, trust_remote_code=arguments.base_trust, **{**arguments.base, **location}
        )
    except ValueError as error:
        # transformers names the wrong trust: the settings' is given, the base's is missing.
        if arguments.base_trust or "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"The base model {name!r} brings code of its own, and trusting the settings is not trusting the "
            "base. Read its code, then pass base_trust_remote_code=True."
        ) from error
    config.base_model_revision = location.get("revision", config.base_model_revision)
    return loaded


def load_processor(
    config: RudderConfig, arguments: LoadArguments | None = None, *args: Any, auto_class: Any = AutoProcessor
) -> Any:
    """Load the processor (or what `auto_class` loads) of the base that settings name, at their revision."""
    arguments = arguments or LoadArguments()
    options = {**locate_base(config, arguments), **arguments.base, "trust_remote_code": arguments.base_trust}
    return auto_class.from_pretrained(str(config.base_model_name_or_path), *args, **options)


class RudderProcessor(ProcessorMixin):
    """Load the processor of the base model that settings name. It has no instances."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load the processor of the base model that the settings in a folder or repository name.

        Takes what `AutoProcessor.from_pretrained` takes, but `revision` is that of the settings, and the base's code
        runs with `base_trust_remote_code=True`.
        """
        arguments = LoadArguments.sort(kwargs)
        return load_processor(load_settings(pretrained_model_name_or_path, arguments), arguments)


class RudderTokenizer(PreTrainedTokenizerFast):
    """Load the tokenizer of the base model that settings name. It has no instances."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Load the tokenizer of the base model; arguments as for [`RudderProcessor.from_pretrained`]."""
        arguments = LoadArguments.sort(kwargs)
        settings = load_settings(pretrained_model_name_or_path, arguments)
        return load_processor(settings, arguments, *args, auto_class=AutoTokenizer)


# transformers reads `auto_map` for tokenizers from tokenizer_config.json, which settings do not have. It finds this
# class by the class of the config instead, in the code of a settings repository too.
AutoTokenizer.register(RudderConfig, fast_tokenizer_class=RudderTokenizer, exist_ok=True)
