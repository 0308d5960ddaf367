"""The base model's processor for a settings repository, and the one encoder of images and prompts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerFast, ProcessorMixin
from transformers.utils import PROCESSOR_NAME, cached_file

from ..core.configuration import RudderConfig
from .images import as_rgb
from .loading import Base, LoadArguments, find_base, load_settings

# Any of these says that a place holds a processor, and not only a tokenizer.
_PROCESSOR_FILES = (PROCESSOR_NAME, "preprocessor_config.json")


class RudderProcessor(ProcessorMixin):
    """The way from settings to the processor of the base model that they name. It has no instances."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load the processor of the base model that the settings in a folder or repository name.

        Takes the arguments of `AutoProcessor.from_pretrained` for the base, but `revision` is that of the settings;
        `base_trust_remote_code=True` lets code of the base's repository run.
        """
        arguments = LoadArguments.sort(kwargs)
        return load_processor(load_settings(pretrained_model_name_or_path, arguments), arguments)


class RudderTokenizer(PreTrainedTokenizerFast):
    """The way from settings to the tokenizer of the base model that they name. It has no instances."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Load the tokenizer of the base model; arguments as for [`RudderProcessor.from_pretrained`]."""
        processor = RudderProcessor.from_pretrained(pretrained_model_name_or_path, **kwargs)
        return getattr(processor, "tokenizer", processor)


# transformers reads `auto_map` for tokenizers from a tokenizer_config.json, which settings have not. By the class of
# the config it finds this one, in the code of a settings repository too.
AutoTokenizer.register(RudderConfig, fast_tokenizer_class=RudderTokenizer, exist_ok=True)


def load_processor(config: RudderConfig, arguments: LoadArguments | None = None) -> Any:
    """The processor of the base that settings name, at their revision."""
    arguments = arguments or LoadArguments()
    base = find_base(config, arguments)
    if base.adapter_of is not None and not _has_processor(base):
        # Adapters are often stored without the processor of the model that they belong to.
        base = Base(base.adapter_of, arguments.shared)
    return AutoProcessor.from_pretrained(
        base.name, trust_remote_code=arguments.base_trust, **base.location, **arguments.for_processor()
    )


def _has_processor(base: Base) -> bool:
    quiet = {"_raise_exceptions_for_missing_entries": False}
    return any(cached_file(base.name, name, **base.location, **quiet) is not None for name in _PROCESSOR_FILES)


def encode(
    processor: Any, images: Sequence[Any], texts: Sequence[str], chats: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Inputs of `generate` for a batch of prompts, padded on the left. The processor is left as it was.

    A text that places its image itself (`"USER: <image> ... ASSISTANT:"`) is used as it is, any other one through the
    processor's chat template; without a template the placeholder is put before it. Whole `chats`, with their images in
    them, are taken instead of `images` and `texts`.
    """
    images = [as_rgb(image) if isinstance(image, Image.Image) else image for image in images]
    processor = _padding_left(processor)
    token = _image_token(processor)
    placed = chats is None and token is not None and all(token in text for text in texts)
    if chats is not None or (getattr(processor, "chat_template", None) and not placed):
        encoded = processor.apply_chat_template(
            list(chats) if chats is not None else [as_chat(*pair) for pair in zip(images, texts, strict=True)],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        )
        return dict(encoded)
    # BLIP's processors set the placeholders themselves.
    if not placed and not hasattr(processor, "num_query_tokens"):
        texts = [f"{token or '<image>'}\n{text}" for text in texts]
    return dict(processor(images=[[image] for image in images], text=list(texts), padding=True, return_tensors="pt"))


def _padding_left(processor: Any) -> Any:
    """The processor, or where its tokenizer pads on the right a copy with one that pads on the left.

    Prompts have to end together for generation. A Q-Former's own tokenizer keeps its side.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    if getattr(tokenizer, "padding_side", "left") == "left":
        return processor
    left = copy.copy(tokenizer)
    left.padding_side = "left"
    if tokenizer is processor:
        return left
    processor = copy.copy(processor)
    processor.tokenizer = left
    return processor


def _image_token(processor: Any) -> str | None:
    """What stands for an image in a prompt."""
    token = getattr(processor, "image_token", None)
    return None if token is None else str(getattr(token, "content", token))


def as_chat(image: Any, text: str) -> list[dict[str, Any]]:
    """A chat of one message: an image and a text."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
