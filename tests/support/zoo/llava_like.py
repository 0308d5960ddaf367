"""LLaVA and the models made like it: a vision tower, a projector, image features in place of placeholder tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedModel,
    Qwen2Config,
    SiglipVisionConfig,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)

from .base import (
    IMAGE,
    TEXT,
    VISION,
    Family,
    Row,
    image_batch,
    tiny,
)

_VIDEO = 4
_ROW_END = 5
_IMAGE_END = 6
_TILES = 3
_PINPOINTS = [[16, 32], [32, 16], [32, 32]]


def _four(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image."""
    return image_batch(rows, [IMAGE] * 4)


def _tiled(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Images twice as wide as high: the whole and two tiles, so 4 placeholders and 2 rows of 4 and a line end."""
    batch = image_batch(rows, [IMAGE] * 14, (_TILES, 3, 16, 16))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[16, 32]] * len(batch["pixel_values"]))
    return batch


def _lined(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Pixtral's layout: the placeholders of each row of patches closed by a token that stays text."""
    batch = image_batch(rows, [IMAGE, IMAGE, _ROW_END, IMAGE, IMAGE, _IMAGE_END])
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[16, 16]] * len(batch["pixel_values"]))
    return batch


def _llava() -> PreTrainedModel:
    """CLIP and Llama."""
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
    )
    return tiny(LlavaForConditionalGeneration, config)


def _pixtral() -> PreTrainedModel:
    """Pixtral, which is a LLaVA with another vision tower, and Mistral."""
    config = LlavaConfig(
        vision_config=PixtralVisionConfig(**VISION),
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=1,
    )
    return tiny(LlavaForConditionalGeneration, config)


def _llava_next() -> PreTrainedModel:
    """CLIP on tiles, and Mistral."""
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_index=IMAGE,
        image_grid_pinpoints=_PINPOINTS,
        image_seq_length=4,
    )
    return tiny(LlavaNextForConditionalGeneration, config)


def _llava_onevision() -> PreTrainedModel:
    """SigLIP on tiles, and Qwen2."""
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        video_token_index=_VIDEO,
        image_grid_pinpoints=_PINPOINTS,
    )
    return tiny(LlavaOnevisionForConditionalGeneration, config)


def _vipllava() -> PreTrainedModel:
    """Features of several CLIP layers, and Llama."""
    config = VipLlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        vision_feature_layers=[-2, -1, 0],
        image_seq_length=4,
    )
    return tiny(VipLlavaForConditionalGeneration, config)


def _video_llava() -> PreTrainedModel:
    """A tower for images beside one for videos, and Llama."""
    config = VideoLlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        video_token_index=_VIDEO,
        image_seq_length=4,
        video_seq_length=4,
    )
    return tiny(VideoLlavaForConditionalGeneration, config)


FAMILIES: tuple[Family, ...] = (
    Family("llava", _llava, _four, "model.language_model.layers"),
    Family("llava", _pixtral, _lined, "model.language_model.layers", key="llava-pixtral"),
    Family("llava_next", _llava_next, _tiled, "model.language_model.layers"),
    Family("llava_onevision", _llava_onevision, _tiled, "model.language_model.layers"),
    Family("vipllava", _vipllava, _four, "model.language_model.layers"),
    Family("video_llava", _video_llava, _four, "model.language_model.layers"),
)
