"""`AutoModelForCausalLM` for a settings repository: the base model itself, steered in place.

Programs that look at a model's class or type see the one that they know. `transformers serve` does: by the class it
tells what a model takes, and by the type how its answers are parsed. It loads a model by the name that stands first
under `architectures`, which has to be one in transformers itself, so that settings name the Auto class there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationMixin, PreTrainedModel

from ..core.configuration import RudderConfig
from ..core.handle import attach
from .loading import load_settings_and_base


class RudderInPlace(PreTrainedModel, GenerationMixin):
    """The way from settings to the base model that they name, steered as [`attach`] does. It has no instances."""

    config_class = RudderConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("RUDDER holds no weights of its own: use AutoModelForCausalLM.from_pretrained(config_repo).")

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | Path, *args: Any, config: RudderConfig | None = None, **kwargs: Any
    ) -> Any:
        """Load the base model and steer it.

        Args:
            pretrained_model_name_or_path: Folder or Hub id that holds the settings.
            *args: As for [`RudderForConditionalGeneration.from_pretrained`].
            config: As for [`RudderForConditionalGeneration.from_pretrained`].
            **kwargs: As for [`RudderForConditionalGeneration.from_pretrained`].

        Returns:
            The base model, of its own class, whose `generate` is steered; with `output_loading_info=True` a tuple of
            it and the info.
        """
        settings, loaded = load_settings_and_base(pretrained_model_name_or_path, config, kwargs, *args)
        attach(loaded[0] if isinstance(loaded, tuple) else loaded, settings)
        return loaded
