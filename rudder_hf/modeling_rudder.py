"""`RudderForConditionalGeneration`: a vision-language model with RUDDER around its `generate`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from .attach_rudder import SteeringHandle, attach
from .backbones_rudder import without_peft
from .configuration_rudder import RudderConfig
from .presets_rudder import get_preset
from .settings_rudder import Override

logger = logging.get_logger(__name__)


def _of_base(name: str) -> Any:
    """A method that the base model answers."""
    inherited = getattr(PreTrainedModel, name, None) or getattr(GenerationMixin, name)

    @functools.wraps(inherited)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.model, name)(*args, **kwargs)

    return method


class RudderForConditionalGeneration(PreTrainedModel, GenerationMixin):
    r"""A vision-language model whose `generate` is steered by RUDDER. Everything else is the base model's.

    Make one with [`~RudderForConditionalGeneration.from_base`] or
    [`~RudderForConditionalGeneration.from_pretrained`].

    Args:
        config ([`RudderConfig`]):
            The settings. They can be changed between calls: `model.config.alpha_max = 12.0`.
        base (`nn.Module`):
            The loaded base model, or a PEFT model around it. It is hooked in place, not copied.
    """

    config_class = RudderConfig
    config: RudderConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: RudderConfig, base: nn.Module | None = None) -> None:
        if base is None:
            raise ValueError(
                "RUDDER holds no weights of its own: use RudderForConditionalGeneration.from_base(base, config) or "
                "from_pretrained(config_repo)."
            )
        if isinstance(base, RudderForConditionalGeneration):
            raise ValueError("This model is steered by RUDDER already. Change its settings, or unwrap() it first.")
        super().__init__(config)
        self._handle: SteeringHandle | None = attach(base, config)
        self.model: Any = base
        # The base keeps its mode; the wrapper takes it over.
        self.training = base.training

    # Making and unmaking

    @classmethod
    def from_base(
        cls, base: nn.Module | str | Path, config: RudderConfig | str | None = None, **kwargs: Any
    ) -> RudderForConditionalGeneration:
        """Wrap a base model.

        Args:
            base: A loaded model (hooked in place), or a Hub id or folder to load with
                `AutoModelForImageTextToText.from_pretrained`.
            config: The settings, or the name of a preset. None takes the preset of the base's id.
            **kwargs: Passed on to `from_pretrained` of the base when an id is given (`dtype`, `device_map`, ...).

        Raises:
            ValueError: There is neither a config nor a preset for the base, or a setting does not fit it.
            UnsupportedModelError: The base cannot be steered, with the reason.
        """
        loaded = isinstance(base, nn.Module)
        if not loaded and not isinstance(base, (str, Path)):
            raise TypeError(f"base is {base!r}, but has to be a loaded model, or the id or folder of one.")
        if loaded and kwargs:
            raise ValueError(f"{sorted(kwargs)} are for loading a base by id, but a loaded model was given.")
        name = str(base)
        if loaded:
            name = str(getattr(getattr(without_peft(base), "config", None), "name_or_path", ""))  # type: ignore[arg-type]
        if config is None or isinstance(config, str):
            preset = get_preset(name if config is None else config)
            config = preset.config()
            if not preset.calibrated:
                logger.warning(f"RUDDER settings for {preset.name} are not calibrated: {preset.source}.")
        elif getattr(config, "model_type", None) != RudderConfig.model_type:
            raise TypeError(f"config is {config!r}, but has to be a RudderConfig or the name of a preset.")
        else:
            config = copy.deepcopy(config)
            if name and config.base_model_name_or_path not in (None, name):
                logger.warning(f"Settings made for {config.base_model_name_or_path!r} are used on {name!r}.")
        # The config names what is really steered, so that it is what a saved config loads.
        config.base_model_name_or_path = name or None
        if loaded:
            return cls(config, base)  # type: ignore[arg-type]
        config.base_model_revision = kwargs.pop("revision", None) or config.base_model_revision
        return cls(config, cls._load_base(config, **kwargs))

    @staticmethod
    def _load_settings(source: str | Path, **kwargs: Any) -> RudderConfig:
        """Read settings, and say so if there is a model instead."""
        stored, _ = PreTrainedConfig.get_config_dict(source, **kwargs)
        if stored.get("model_type") != RudderConfig.model_type:
            raise ValueError(
                f"{source!s} holds a {stored.get('model_type')!r} model, not RUDDER settings. To steer it: "
                f"from_base({str(source)!r}, RudderConfig(layer=..., alpha_max=..., k=...))."
            )
        settings: RudderConfig = RudderConfig.from_dict(stored)
        return settings

    @staticmethod
    def _load_base(config: RudderConfig, *args: Any, **kwargs: Any) -> nn.Module:
        """Load the model that the settings name, at the revision that they name."""
        if config.base_model_revision is not None:
            kwargs["revision"] = config.base_model_revision
        base: nn.Module = AutoModelForImageTextToText.from_pretrained(config.base_model_name_or_path, *args, **kwargs)
        return base

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | Path, *args: Any, config: RudderConfig | None = None, **kwargs: Any
    ) -> RudderForConditionalGeneration:
        """Load settings that `save_pretrained` wrote, and the base model that they name.

        Args:
            pretrained_model_name_or_path: Folder or Hub id that holds the settings.
            *args: Passed on to the base's `from_pretrained`.
            config: Settings to use instead of the stored ones.
            **kwargs: RUDDER settings to override (`alpha_max=11.0`), and arguments for loading the base (`dtype`,
                `device_map`, `attn_implementation`, ...).

        Raises:
            ValueError: The settings name no base model, or do not fit it.
        """
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in RudderConfig.__dataclass_fields__}
        for_base = {name: own.pop(name) for name in ("dtype",) if name in own}
        # These speak of the repository with the settings, not of the base.
        ours = {
            name: kwargs.pop(name) for name in ("revision", "subfolder", "code_revision", "variant") if name in kwargs
        }
        shared = {
            name: kwargs[name]
            for name in ("cache_dir", "token", "local_files_only", "force_download")
            if name in kwargs
        }
        if config is None:
            config = cls._load_settings(pretrained_model_name_or_path, **ours, **shared)
        config = copy.deepcopy(config)
        for name, value in own.items():
            setattr(config, name, value)
        config.validate_settings()
        if not config.base_model_name_or_path:
            raise ValueError(
                f"The settings in {pretrained_model_name_or_path!s} name no base model (base_model_name_or_path). "
                "Load the base yourself and use RudderForConditionalGeneration.from_base(model, config)."
            )
        return cls(config, cls._load_base(config, *args, **for_base, **kwargs))

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # type: ignore[override]
        """Write the settings as `config.json`. The base's weights are not copied: its name stands in the config."""
        if not self.config.base_model_name_or_path:
            logger.warning(
                "The base model has no name, so the saved settings can only be used with from_base(model, ...)."
            )
        if hasattr(self.model, "peft_config"):
            logger.warning(
                "The base carries PEFT adapters, which the saved settings do not: save and load them with PEFT."
            )
        self.config.save_pretrained(save_directory, **kwargs)

    def unwrap(self) -> nn.Module:
        """Remove every hook and bound method and return the base model as it was. The wrapper is then of no use."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        base: nn.Module = self.model
        return base

    @property
    def handle(self) -> SteeringHandle:
        """What is installed on the base model.

        Raises:
            RuntimeError: The model was unwrapped.
        """
        handle: SteeringHandle | None = self.__dict__.get("_handle")
        if handle is None or not handle.installed:
            raise RuntimeError("This wrapper was unwrapped. Wrap the base again with from_base(model, config).")
        return handle

    # Running

    def generate(self, *args: Any, rudder: Override = None, output_rudder: bool | None = None, **kwargs: Any) -> Any:
        """Generate with the base model, steered.

        Args:
            *args: As for the base's `generate`.
            rudder: None for the model's settings; False for the unsteered base; a dictionary of settings for this
                call, whose strength and gate settings may be lists with one value per prompt
                (`{"alpha_max": [0.0, 10.0]}`; `{"force": True}` steers prompts without an image too); or a list with
                one dictionary, None or False for each prompt.
            output_rudder: Return what RUDDER saw and did per token as `out.rudder`, a [`RudderTrace`]. Needs
                `return_dict_in_generate=True`.
            **kwargs: As for the base's `generate`.

        Returns:
            What the base's `generate` returns.
        """
        # Raises for a wrapper that was unwrapped, whose base would run bare; and follows an exchanged config.
        self.handle.config = self.config
        if isinstance(assistant := kwargs.get("assistant_model"), RudderForConditionalGeneration):
            kwargs["assistant_model"] = assistant.model
        return self.model.generate(*args, rudder=rudder, output_rudder=output_rudder, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's forward. It is never steered: RUDDER acts in `generate`."""
        return self.model(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The base model's, for decoding loops of your own."""
        prepared: dict[str, Any] = self.model.prepare_inputs_for_generation(*args, **kwargs)
        return prepared

    @contextmanager
    def rudder_disabled(self) -> Iterator[None]:
        """Leave the model unsteered within the block, in every thread. For one call pass `rudder=False`."""
        with self.handle.disabled():
            yield

    # Everything else is the base's

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_modules", {}).get("model")
            if base is None:
                raise
            return getattr(base, name)

    @property
    def generation_config(self) -> GenerationConfig:
        """The base model's generation config."""
        config: GenerationConfig = without_peft(self.model).generation_config
        return config

    @generation_config.setter
    def generation_config(self, value: GenerationConfig) -> None:
        base = self.__dict__.get("_modules", {}).get("model")
        # PreTrainedModel assigns one while the wrapper has no base yet: that one is of no use.
        if base is not None:
            without_peft(base).generation_config = value

    def to(self, *args: Any, **kwargs: Any) -> RudderForConditionalGeneration:
        """Move or cast the base model by its own rules (which differ for offloaded and quantised models)."""
        self.model.to(*args, **kwargs)
        return self

    # What PreTrainedModel and GenerationMixin would answer from the wrapper's own config or modules.
    get_input_embeddings = _of_base("get_input_embeddings")
    set_input_embeddings = _of_base("set_input_embeddings")
    get_output_embeddings = _of_base("get_output_embeddings")
    set_output_embeddings = _of_base("set_output_embeddings")
    resize_token_embeddings = _of_base("resize_token_embeddings")
    get_decoder = _of_base("get_decoder")
    get_encoder = _of_base("get_encoder")
    tie_weights = _of_base("tie_weights")
    set_attn_implementation = _of_base("set_attn_implementation")
    gradient_checkpointing_enable = _of_base("gradient_checkpointing_enable")
    gradient_checkpointing_disable = _of_base("gradient_checkpointing_disable")
    add_adapter = _of_base("add_adapter")
    load_adapter = _of_base("load_adapter")
    set_adapter = _of_base("set_adapter")
    delete_adapter = _of_base("delete_adapter")
    enable_adapters = _of_base("enable_adapters")
    disable_adapters = _of_base("disable_adapters")
    active_adapters = _of_base("active_adapters")
    get_adapter_state_dict = _of_base("get_adapter_state_dict")
    compute_transition_scores = _of_base("compute_transition_scores")
    generate_batch = _of_base("generate_batch")
    init_continuous_batching = _of_base("init_continuous_batching")
    continuous_batching_context_manager = _of_base("continuous_batching_context_manager")
