"""`AutoProcessor` for a settings repository: the base model's own processor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoProcessor, ProcessorMixin
from transformers.utils import PROCESSOR_NAME, cached_file

from ..core.configuration import RudderConfig
from .loading import Base, LoadArguments, find_base, load_settings

# Any of these says that a place holds a processor, and not only a tokenizer.
_PROCESSOR_FILES = (PROCESSOR_NAME, "preprocessor_config.json")


class RudderProcessor(ProcessorMixin):
    """The way from settings to the processor of the base model that they name. It has no instances."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load the processor of the base model.

        Args:
            pretrained_model_name_or_path: Folder or Hub id that holds the settings.
            **kwargs: As for `AutoProcessor.from_pretrained` of the base; `revision` is that of the settings, and
                `base_trust_remote_code=True` lets code of the base's repository run.

        Returns:
            The base's processor itself.
        """
        arguments = LoadArguments.sort(kwargs)
        config = load_settings(pretrained_model_name_or_path, arguments)
        return load_processor(config, arguments)


def load_processor(config: RudderConfig, arguments: LoadArguments | None = None) -> Any:
    """The processor of the base that settings name, at their revision.

    Args:
        config: The settings.
        arguments: Arguments for loading it, if there are any.
    """
    arguments = arguments or LoadArguments()
    base = find_base(config, arguments.shared)
    if base.adapter_of is not None and not _has_processor(base):
        # Adapters are often stored without the processor of the model that they belong to.
        base = Base(base.adapter_of, None, None, arguments.shared)
    return AutoProcessor.from_pretrained(
        base.name, trust_remote_code=arguments.base_trust, **base.location(), **arguments.for_processor()
    )


def _has_processor(base: Base) -> bool:
    if os.path.isdir(base.name):
        return any(os.path.exists(os.path.join(base.name, name)) for name in _PROCESSOR_FILES)
    quiet = {"_raise_exceptions_for_missing_entries": False}
    return any(cached_file(base.name, name, **base.location(), **quiet) is not None for name in _PROCESSOR_FILES)
