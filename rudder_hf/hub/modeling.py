"""`RudderForConditionalGeneration`: a vision-language model with RUDDER around its `generate`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from ..core.attach import as_config, attach, package_module
from ..core.backbones import without_peft
from ..core.call import Override
from ..core.configuration import RudderConfig
from ..core.errors import logger
from ..core.handle import SteeringHandle
from ..core.settings import CALL_SETTINGS
from .loading import LoadArguments, check_names_model, full_name, load_base, load_settings, name_in_full
from .saving import save_copy

# Options of a push among those of `save_pretrained`, the rest of which is about weights.
_PUSH_OPTIONS = ("private", "token", "revision", "create_pr", "commit_message", "commit_description")


def _of_base(name: str) -> Any:
    """Make a method that the base model answers, with the signature of the inherited one."""
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
        self._handle = attach(base, config)
        self.model: Any = base
        # Where the settings were loaded from, for a copy of their code.
        self._source: tuple[str | None, dict[str, Any]] = (None, {})
        config.describe_base(without_peft(base).config)
        self.training = base.training  # The base keeps its mode.

    @classmethod
    def from_base(
        cls,
        base: nn.Module | str | Path,
        config: RudderConfig | str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> RudderForConditionalGeneration:
        """Wrap a base model.

        Args:
            base: A loaded model (hooked in place), or a Hub id or folder to load with
                `AutoModelForImageTextToText.from_pretrained`.
            config: The settings: a RudderConfig, the name of a preset, or a dictionary. None takes the preset of the
                base's id.
            **kwargs: Settings on top of these (`layer=4, alpha_max=70.0`), which are enough for a base without preset.
                For an id or folder also arguments of the base's `from_pretrained` (`dtype`, `device_map`, ...).

        Raises:
            ValueError: There are no settings for the base, one does not fit, or the base cannot be steered.
        """
        given = {key: kwargs.pop(key) for key in ("layer", *CALL_SETTINGS) if key in kwargs}
        if isinstance(base, nn.Module):
            if kwargs:
                raise ValueError(f"{sorted(kwargs)} are for loading a base by id, but a loaded model was given.")
            name = str(getattr(getattr(without_peft(base), "config", None), "name_or_path", ""))
        elif isinstance(base, (str, Path)):
            name = base = str(base)
            check_names_model(base)
        else:
            raise TypeError(f"base is {base!r}, but has to be a loaded model, or the id or folder of one.")
        name = full_name(name)
        # A copy: the config names what is really steered, so that it is what a saved config loads.
        settings = copy.deepcopy(as_config(config, given, base))
        stored = settings.base_model_name_or_path
        if name and stored and full_name(stored) != name:
            logger.warning(f"Settings made for {stored!r} are used on {name!r}.")
            # The stored revision is one of the stored base.
            settings.base_model_revision = None
        settings.base_model_name_or_path = name or None
        name_in_full(settings)
        if isinstance(base, nn.Module):
            return cls(settings, base)
        settings.base_model_revision = kwargs.pop("revision", None) or settings.base_model_revision
        arguments = LoadArguments.sort(kwargs)
        # The user named the base, and no settings.
        arguments.base |= {**arguments.settings, **arguments.ours}
        arguments.base_trust |= bool(kwargs.get("trust_remote_code"))
        return cls(settings, load_base(settings, arguments))

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | Path, *args: Any, config: RudderConfig | None = None, **kwargs: Any
    ) -> Any:
        """Load settings that `save_pretrained` or `push_to_hub` wrote, and the base model that they name.

        Args:
            pretrained_model_name_or_path: Folder or Hub id that holds the settings.
            *args: Passed on to the base's `from_pretrained`.
            config: Settings to use instead of the stored ones.
            **kwargs: RUDDER settings to override (`alpha_max=11.0`), and arguments for loading the base (`dtype`,
                `device_map`, `quantization_config`, `attn_implementation`, ...). `revision` is that of the settings;
                that of the base stands in them (`base_model_revision`). `base_trust_remote_code=True` lets code of
                the base's repository run, which `trust_remote_code` does not.
        """
        arguments = LoadArguments.sort(kwargs, config)
        settings = load_settings(pretrained_model_name_or_path, arguments, copy.deepcopy(config))
        model = cls(settings, load_base(settings, arguments, *args))
        # In older versions of transformers the config alone knows its commit.
        commit = getattr(config, "_commit_hash", None)
        place = {**arguments.shared, **arguments.ours, **({"revision": commit} if commit else {})}
        model._source = (str(pretrained_model_name_or_path), place)
        return model

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a settings repository: `config.json`, code and a card. The base's weights stay where they are.

        Args:
            save_directory: Folder to write into, which must not hold a model.
            is_main_process: Whether to write at all, for scripts on several processes.
            push_to_hub: Push it as well, with the `**kwargs` of [`~RudderForConditionalGeneration.push_to_hub`].
            repo_id: Where to push; None takes the folder's name.
            **kwargs: Others, which are about weights, are ignored.
        """
        if not is_main_process:
            return
        if not self.config.base_model_name_or_path:
            logger.warning("The base model has no name: use the saved settings with from_base(model, ...).")
        if hasattr(self.model, "peft_config"):
            logger.warning("The saved settings do not hold the base's PEFT adapters: save and load them with PEFT.")
        package = package_module("hub.push")
        if package is None:
            save_copy(self.config, Path(save_directory), *self._source)
        else:
            package.write_repo(self.config, save_directory, repo_id)
        if push_to_hub:
            options = {name: value for name, value in kwargs.items() if name in _PUSH_OPTIONS}
            self.push_to_hub(repo_id or Path(save_directory).resolve().name, **options)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]
        """Push the settings, with code and a card, to the Hub. The base's weights stay where they are.

        Args:
            repo_id: Where to push; made if it does not exist.
            **kwargs: `private`, `token`, `revision`, `create_pr`, ..., as for [`push_repo`].

        Returns:
            Address of the commit, or of the pull request.
        """
        package = package_module("hub.push")
        if package is None:
            raise ImportError(
                "The code of a settings repository does not push: save_pretrained the settings, then "
                f"`pip install rudder_hf` and `rudder push FOLDER {repo_id}`."
            )
        commit = package.push_repo(self.config, repo_id, **kwargs)
        return str(commit.pr_url or commit.commit_url)

    def unwrap(self) -> nn.Module:
        """Remove every hook and bound method and return the base model as it was. The wrapper is then of no use."""
        self._handle.remove()
        return self.model  # type: ignore[no-any-return]

    @property
    def handle(self) -> SteeringHandle:
        """Return what is installed on the base model; raise a RuntimeError if it was unwrapped."""
        if not self._handle.installed:
            raise RuntimeError("This wrapper was unwrapped. Wrap the base again with from_base(model, config).")
        return self._handle

    def extra_repr(self) -> str:
        """Describe the steering, for `print(model)`."""
        return f"RUDDER: {'' if self._handle.installed else 'removed; '}{self.config.expression()}"

    def generate(self, *args: Any, rudder: Override = None, output_rudder: bool | None = None, **kwargs: Any) -> Any:
        """Generate with the base model, steered.

        Args:
            *args: As for the base's `generate`.
            rudder: None for the model's settings; False for the unsteered base; a dictionary of settings for this
                call, whose strength and gate settings may be lists with one value per prompt
                (`{"alpha_max": [0.0, 10.0]}`; `{"force": True}` steers prompts without an image too). What is None
                is taken from the generation config (`GenerationConfig(rudder=...)`), which servers let each request
                choose.
            output_rudder: Return what RUDDER saw and did per token as `out.rudder`, a [`RudderTrace`]. Needs
                `return_dict_in_generate=True`.
            **kwargs: As for the base's `generate`, whose output is returned.
        """
        # `handle` raises for a wrapper that was unwrapped. An exchanged config is followed.
        if self.handle.config is not self.config:
            self.handle.config = self.config
            self.config.describe_base(without_peft(self.model).config)
        if isinstance(assistant := kwargs.get("assistant_model"), RudderForConditionalGeneration):
            kwargs["assistant_model"] = assistant.model
        return self.model.generate(*args, rudder=rudder, output_rudder=output_rudder, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the base model's forward. It is never steered: RUDDER acts in `generate`."""
        return self.model(*args, **kwargs)

    @contextmanager
    def rudder_disabled(self) -> Iterator[None]:
        """Leave the model unsteered within the block, in every thread. For one call pass `rudder=False`."""
        blocks = self.handle.disabled_blocks
        blocks.append(None)
        try:
            yield
        finally:
            blocks.pop()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_modules", {}).get("model")
            if base is None:
                raise
            return getattr(base, name)

    @property
    def input_modalities(self) -> Any:
        """Return the modalities that the base model takes."""
        return without_peft(self.model).input_modalities

    @property
    def generation_config(self) -> GenerationConfig:
        """Return the base model's generation config."""
        return without_peft(self.model).generation_config  # type: ignore[return-value]

    @generation_config.setter
    def generation_config(self, value: GenerationConfig) -> None:
        base = self.__dict__.get("_modules", {}).get("model")
        if base is not None:  # PreTrainedModel assigns one while the wrapper has no base yet
            without_peft(base).generation_config = value

    def to(self, *args: Any, **kwargs: Any) -> RudderForConditionalGeneration:
        """Move or cast the base model by its own rules (which differ for offloaded and quantised models)."""
        self.model.to(*args, **kwargs)
        return self


# What PreTrainedModel and GenerationMixin would answer from the wrapper's own config or modules.
for _name in (
    *("get_input_embeddings", "set_input_embeddings", "get_output_embeddings", "set_output_embeddings"),
    *("resize_token_embeddings", "get_decoder", "get_encoder", "tie_weights", "set_attn_implementation"),
    *("gradient_checkpointing_enable", "gradient_checkpointing_disable", "compute_transition_scores"),
    *("add_adapter", "load_adapter", "set_adapter", "delete_adapter", "enable_adapters", "disable_adapters"),
    *("active_adapters", "get_adapter_state_dict", "generate_batch", "init_continuous_batching"),
    *("continuous_batching_context_manager", "prepare_inputs_for_generation"),
):
    setattr(RudderForConditionalGeneration, _name, _of_base(_name))


class RudderInPlace(RudderForConditionalGeneration):
    """`AutoModelForCausalLM` for a settings repository: the base model itself, steered in place. It has no instances.

    `transformers serve` tells by a model's class what it takes, and loads it by the name that stands first under
    `architectures`, which has to be one in transformers itself: settings name the Auto class there.
    """

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as [`RudderForConditionalGeneration.from_pretrained`] does, and return the base, steered in place."""
        return RudderForConditionalGeneration.from_pretrained(*args, **kwargs).model
