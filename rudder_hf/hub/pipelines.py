"""`rudder_hf.pipeline`: pipelines for a steered model at hand, which `transformers.pipeline` cannot know."""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn

from ..core.backbones import without_peft
from ..core.configuration import RudderConfig
from ..core.generate import handle_of
from .loading import load_processor, read_settings
from .modeling import RudderForConditionalGeneration
from .pipeline import RudderImageToTextPipeline, call_options


class RudderImageTextToTextPipeline(transformers.ImageTextToTextPipeline):
    """Answer chats as transformers' pipeline of that name, which would drop `rudder`, and take a path for text."""

    def _sanitize_parameters(
        self, generate_kwargs: dict[str, Any] | None = None, rudder: Any = None, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        options = call_options(self, generate_kwargs, rudder=rudder)
        return super()._sanitize_parameters(generate_kwargs=options or None, **kwargs)  # type: ignore[no-any-return]

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        """Answer as `ImageTextToTextPipeline`, with `rudder` as for `generate`. Images without text are refused."""
        alone = images if isinstance(images, (list, tuple)) else [images]
        if text is None and images is not None and all(isinstance(each, str) for each in alone):
            raise ValueError(
                "Images are given without text. Pass text=..., or a chat; "
                'pipeline("image-to-text", ...) describes images without a prompt.'
            )
        return super().__call__(images, text, **kwargs)

    def check_model_type(self, supported_models: Any) -> None:
        """Check nothing: steering refuses models that it does not know."""


PIPELINES: dict[str, type[transformers.Pipeline]] = {
    "image-to-text": RudderImageToTextPipeline,
    "image-text-to-text": RudderImageTextToTextPipeline,
}
_LOADING = ("dtype", "device_map", "revision", "token")  # what loads the model, as `transformers.pipeline` names it


def pipeline(task: str, model: nn.Module | str, *, processor: Any = None, **kwargs: Any) -> transformers.Pipeline:
    """Make a pipeline for a steered model.

    Args:
        task: `"image-to-text"` (an image and a prompt, as before transformers 5) or `"image-text-to-text"` (chats).
        model: A steered model; or the folder or Hub id of settings, or of a base model that has a preset.
        processor: Its processor; None loads that of the base model.
        **kwargs: As for `transformers.pipeline` (`device`, `dtype`, `device_map`, `batch_size`, `model_kwargs`, ...),
            and `rudder` as for `generate`, for all calls that have none of their own.

    Raises:
        ValueError: The task is another one, or the model is not steered.
    """
    if task not in PIPELINES:
        raise ValueError(f"task is {task!r}, but has to be one of {', '.join(map(repr, PIPELINES))}.")
    steered: Any = model
    if not isinstance(model, nn.Module):
        options = {**kwargs.pop("model_kwargs", {}), **{key: kwargs.pop(key) for key in _LOADING if key in kwargs}}
        hub = {key: options[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in options}
        wrapper = RudderForConditionalGeneration
        load = wrapper.from_base if read_settings(model, **hub) is None else wrapper.from_pretrained
        steered = load(model, **options)
    if processor is None:
        processor = load_processor(_settings_of_steered(steered))
    # Under this name also for "image-to-text", which transformers would announce as removed.
    made = transformers.pipeline(
        "image-text-to-text", model=steered, processor=processor, pipeline_class=PIPELINES[task], **kwargs
    )
    made.task = task
    return made


def _settings_of_steered(model: Any) -> RudderConfig:
    """Return settings that name the base of a wrapped or attached model.

    Raises:
        ValueError: The model is not steered.
    """
    if getattr(model.config, "model_type", None) == RudderConfig.model_type:
        return model.config  # type: ignore[no-any-return]
    base: Any = without_peft(model)
    handle = handle_of(base)
    if handle is None:
        raise ValueError(
            f"{type(base).__name__} is not steered: wrap it with RudderForConditionalGeneration.from_base(model, ...) "
            "or attach(model, ...) first."
        )
    if base.config.name_or_path in ("", handle.config.base_model_name_or_path):
        return handle.config  # type: ignore[no-any-return]
    # Settings of another model: the processor belongs to the one that is steered.
    return RudderConfig(base_model_name_or_path=base.config.name_or_path)
