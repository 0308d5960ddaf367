"""Encoding of images and prompts for `generate`. Joined into the pipeline file: imports nothing from core/."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from PIL import Image

from .images import read_image


def encode_prompts(
    processor: Any, images: Sequence[Any], texts: Sequence[str], chats: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Make the inputs of `generate` for a batch of prompts, padded on the left. The processor is left as it was.

    A text that places its image itself (`"USER: <image> ... ASSISTANT:"`) is used as it is, any other one through the
    processor's chat template; without a template the placeholder is put before it. Whole `chats`, with their images in
    them, are taken instead of `images` and `texts`.
    """
    images = [read_image(image) if isinstance(image, Image.Image) else image for image in images]
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
    """Return the processor, or if its tokenizer pads on the right a copy with one that pads on the left.

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
    """Return the placeholder of an image in a prompt."""
    token = getattr(processor, "image_token", None)
    return None if token is None else str(getattr(token, "content", token))


def as_chat(image: Any, text: str) -> list[dict[str, Any]]:
    """Make a chat of one message: an image and a text."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
