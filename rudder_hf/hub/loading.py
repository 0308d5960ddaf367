"""The one loader of settings and of what they name: which argument is for whom, which revision, how far trusted.

Wrapper, Auto classes, pipelines, commands, vLLM and lmms-eval load through here, so that one set of rules holds for
all: settings from the Hub lead to a model on the Hub and to nothing else, and trust in settings is not trust in the
base that they name.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import is_offline_mode
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.utils import find_adapter_config_file, is_peft_available

from ..core.backbones import text_only_error
from ..core.compat import resolve_revision
from ..core.configuration import CALL_SETTINGS, SETTING_NAMES, RudderConfig
from ..core.errors import logger
from ..core.trust import check_base_name, check_revision, is_commit, is_hub_id, is_on_hub

# Arguments about the repository with the settings, or from the Auto classes: never for the base.
_OURS = ("revision", "subfolder", "code_revision", "variant")
_DROPPED = ("trust_remote_code", "adapter_kwargs", "_from_auto", "_from_pipeline", "_commit_hash")
# Arguments of these that are for the base after all where the user names a base and no settings.
_OF_NAMED_BASE = ("subfolder", "variant", "code_revision", "adapter_kwargs")
# Arguments about the way to the Hub, which is the same for both.
_SHARED = ("cache_dir", "token", "local_files_only", "force_download", "proxies")
# Arguments for the base that a config takes when it is loaded with them.
_SWALLOWED = ("attn_implementation", "experts_implementation", "output_attentions", "output_hidden_states")
# What `from_pretrained` of a model takes beside the fields of its config.
_MODEL_ARGUMENTS = frozenset(
    """
    adapter_name allow_all_kernels attn_implementation device_map device_mesh disable_mmap distributed_config dtype
    experts_implementation fusion_config generation_config gguf_file ignore_mismatched_sizes kernel_config key_mapping
    low_cpu_mem_usage max_memory offload_buffers offload_folder offload_state_dict output_attentions
    output_hidden_states output_loading_info quantization_config return_dict state_dict torch_dtype tp_plan tp_size
    tqdm_class use_kernels use_safetensors weights_only
    """.split()  # noqa: SIM905 - one name a line would hide the list
)


@dataclass
class LoadArguments:
    """The arguments of a `from_pretrained` call on settings, each with its owner."""

    settings: dict[str, Any] = field(default_factory=dict)  # RUDDER settings to override
    ours: dict[str, Any] = field(default_factory=dict)  # for the repository that holds the settings
    shared: dict[str, Any] = field(default_factory=dict)  # for both repositories (`token`, `cache_dir`, ...)
    base: dict[str, Any] = field(default_factory=dict)  # for loading the base
    base_trust: bool = False  # whether code of the base's repository may run: not implied by trust in the settings'

    @classmethod
    def sort(cls, kwargs: Mapping[str, Any]) -> LoadArguments:
        """Give each argument to its owner."""
        found = cls(base_trust=bool(kwargs.get("base_trust_remote_code")))
        for name, value in kwargs.items():
            if name in SETTING_NAMES:
                found.settings[name] = value
            elif name in _OURS:
                found.ours[name] = value
            elif name in _SHARED:
                found.shared[name] = value
            elif name not in (*_DROPPED, "base_trust_remote_code"):
                found.base[name] = value
        return found

    def for_processor(self) -> dict[str, Any]:
        """What of the base's arguments a processor takes: a pipeline passes those of the model to it as well."""
        return {name: value for name, value in self.base.items() if name not in _MODEL_ARGUMENTS}


def full_name(name: str) -> str:
    """A name that means the same in every working directory: the full path of a folder, the id of what is none."""
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
    """The settings that a folder or repository (at `revision`, with `token`, ...) holds; None if it holds a model.

    Raises:
        ValueError: There is no config, a setting is wrong, or the base's name leads elsewhere than it may.
        OSError: The place cannot be read.
    """
    _check_place(str(source))
    stored, _ = RudderConfig.get_config_dict(source, **location)
    if not stored:
        raise ValueError(f"Cannot load {str(source)!r}: there is no config.json in it.")
    if stored.get("model_type") != RudderConfig.model_type:
        return None
    config: RudderConfig = RudderConfig.from_dict(stored)
    return config


def load_settings(source: str | Path, arguments: LoadArguments, config: Any = None) -> RudderConfig:
    """Read settings from a folder or the Hub, put those on top that the user gave, and check what they name.

    Settings that an Auto class has loaded already are given as `config` and used instead of reading.

    Raises:
        ValueError: There is a model instead of settings, a setting is wrong, or the base's name is missing or leads
            elsewhere than it may.
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
    settings.take(arguments.settings)
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


@dataclass(frozen=True)
class Base:
    """Where a base is loaded from."""

    name: str  # Hub id or folder
    # Keyword arguments that lead any `from_pretrained` to the files: the way to the Hub and, where the Hub or the
    # cache knows the base, the revision, resolved to a commit.
    location: Mapping[str, Any]
    adapter_of: str | None = None  # the model that an adapter in this place belongs to; None if this is no adapter

    @property
    def commit(self) -> str | None:
        """The commit that is loaded, if it is known."""
        revision = self.location.get("revision")
        resolved = getattr(revision, "resolved", revision)
        return resolved if is_commit(resolved) else None


def find_base(config: RudderConfig, arguments: LoadArguments) -> Base:
    """Look up the base that settings name, at their revision; what is at its default branch if they name none.

    Raises:
        ValueError: It holds settings itself, which would lead on to another base, or around in a circle.
        UnsupportedModelError: It is a text-only model.
        FileNotFoundError: It is a path, and there is nothing.
    """
    name, location = str(config.base_model_name_or_path), dict(arguments.shared)
    _check_place(name)
    check_revision(config.base_model_revision)
    if is_on_hub(name):
        way = {key: location[key] for key in ("token", "cache_dir", "local_files_only") if key in location}
        revision = resolve_revision(name, config.base_model_revision, **way)
        location |= {} if revision is None else {"revision": revision}
    base = Base(name, location, _adapter_base(name, location))
    if base.adapter_of is None:
        model, where = name, location | {key: value for key, value in arguments.base.items() if key == "subfolder"}
    else:
        model, where = base.adapter_of, dict(arguments.shared)
    stored, _ = PreTrainedConfig.get_config_dict(model, **where)
    kind = stored.get("model_type")
    reads_images = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or "vision_config" in stored
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not reads_images and "auto_map" not in stored:
        raise text_only_error(kind)
    if kind == RudderConfig.model_type:
        raise ValueError(
            f"The settings lead to {model!r} as their base model, but that holds RUDDER settings itself. "
            "base_model_name_or_path has to name the model that is steered."
        )
    return base


def _adapter_base(name: str, located: dict[str, Any]) -> str | None:
    """The model that an adapter belongs to, if there is an adapter and no model of its own beside it."""
    if not is_peft_available():
        return None
    path = find_adapter_config_file(name, **located)
    if path is None or (os.path.isdir(name) and os.path.exists(os.path.join(name, "config.json"))):
        return None
    try:
        base = json.loads(Path(path).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"The adapter_config.json of {name!r} names no base_model_name_or_path.") from error
    if is_on_hub(name):
        # The adapter's author wrote that name.
        check_base_name(base, from_hub=True)
    return str(base)


def load_base(config: RudderConfig, arguments: LoadArguments, *args: Any) -> Any:
    """Load the model that the settings name, and write into them which commit that was.

    Returns:
        The model, or what `from_pretrained` returns with `output_loading_info=True`.

    Raises:
        ValueError: An argument is unknown, the base is no model, or it needs code that is not trusted.
    """
    base = find_base(config, arguments)
    _report_moved(base, config.base_model_revision)
    location = dict(base.location)
    try:
        if base.adapter_of is None:
            _check_arguments(base, arguments)
        elif "revision" in location:
            # As `revision`, transformers would look for the adapter's commit in the repository of its base.
            given = arguments.base.get("adapter_kwargs") or {}
            location["adapter_kwargs"] = {"revision": location.pop("revision"), **given}
        loaded = AutoModelForImageTextToText.from_pretrained(
            base.name, *args, trust_remote_code=arguments.base_trust, **{**arguments.base, **location}
        )
    except ValueError as error:
        # transformers names the wrong trust: the settings' is given, the base's is missing.
        if arguments.base_trust or "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"The base model {base.name!r} brings code of its own, and trusting the settings is not trusting the "
            "base. Read its code, then pass base_trust_remote_code=True."
        ) from error
    if base.commit is not None:
        config.base_model_revision = base.commit
    return loaded


def _check_arguments(base: Base, arguments: LoadArguments) -> None:
    """Refuse arguments that neither RUDDER nor the base knows, before gigabytes are loaded."""
    known = {*_MODEL_ARGUMENTS, *_OF_NAMED_BASE}
    unknown = [name for name in arguments.base if name not in known and not name.startswith("_")]
    if not unknown:
        return
    subfolder = {key: value for key, value in arguments.base.items() if key == "subfolder"}
    config = AutoConfig.from_pretrained(
        base.name, trust_remote_code=arguments.base_trust, **base.location, **subfolder
    )
    # Fields of the base's config may be overridden at load, as for any model.
    names = [name for name in unknown if not hasattr(config, name)]
    if not names:
        return
    hints = [close[0] for name in names if (close := difflib.get_close_matches(name, SETTING_NAMES, n=1, cutoff=0.5))]
    hint = f" Did you mean {', '.join(hints)}?" if hints else ""
    raise ValueError(
        f"{names} are neither RUDDER settings (layer, {', '.join(CALL_SETTINGS)}) nor arguments for loading "
        f"{base.name!r}.{hint}"
    )


def _report_moved(base: Base, pinned: str | None) -> None:
    """Say if the base's default branch is no longer at the commit that the settings were made with."""
    if base.commit is None or base.commit != pinned or is_offline_mode() or base.location.get("local_files_only"):
        return
    way = {key: value for key, value in base.location.items() if key in ("token", "cache_dir")}
    head = getattr(resolve_revision(base.name, None, **way), "resolved", None)
    if head is not None and head != pinned:
        logger.warning(
            f"{base.name} has moved on to {head[:12]} since these settings were made. It is loaded as it was then, at "
            f"{pinned[:12]}; pass base_model_revision='main' for its present state."
        )


def load_settings_and_base(
    source: str | Path, config: RudderConfig | None, kwargs: Mapping[str, Any], *args: Any
) -> tuple[RudderConfig, Any]:
    """What `from_pretrained` of settings loads: the settings, and the model that they name (see [`load_base`]).

    Settings that an Auto class has loaded are given as `config`; `kwargs` are the arguments of the call, those for the
    settings and those for the base, and `args` go to the base's `from_pretrained`.
    """
    arguments = LoadArguments.sort(kwargs)
    if config is not None:
        config = copy.deepcopy(config)
        # AutoModel puts these into the config that it loads, which is ours and not the base's.
        swallowed = {name: getattr(config, f"_{name}", getattr(config, name, None)) for name in _SWALLOWED}
        arguments.base = {name: value for name, value in swallowed.items() if value} | arguments.base
    settings = load_settings(source, arguments, config)
    return settings, load_base(settings, arguments, *args)


def load_named_base(name: str, config: RudderConfig, kwargs: Mapping[str, Any]) -> Any:
    """Load a base that the user named, with arguments that are all meant for it; settings among them override."""
    arguments = LoadArguments.sort(kwargs)
    config.take(arguments.settings)
    config.base_model_name_or_path = name
    config.base_model_revision = kwargs.get("revision") or config.base_model_revision
    # Here the user speaks of the base alone.
    arguments.base |= {key: kwargs[key] for key in _OF_NAMED_BASE if key in kwargs}
    arguments.base_trust = bool(kwargs.get("trust_remote_code") or arguments.base_trust)
    return load_base(config, arguments)
