"""The base model's processor and tokenizer for a settings repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerFast, ProcessorMixin

from ..core.configuration import RudderConfig
from .loading import LoadArguments, load_settings, locate_base


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


def load_processor(
    config: RudderConfig, arguments: LoadArguments | None = None, *args: Any, auto_class: Any = AutoProcessor
) -> Any:
    """Load the processor (or what `auto_class` loads) of the base that settings name, at their revision."""
    arguments = arguments or LoadArguments()
    options = {**locate_base(config, arguments), **arguments.base, "trust_remote_code": arguments.base_trust}
    return auto_class.from_pretrained(str(config.base_model_name_or_path), *args, **options)
