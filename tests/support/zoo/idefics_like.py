"""The Idefics line: a SigLIP tower whose output a connector shortens; batches hold images by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Idefics2Config,
    Idefics2ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from .base import (
    IMAGE,
    PAD,
    TEXT,
    VISION,
    Family,
    Row,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    tiny,
)


def _by_prompt(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image; the images of a prompt padded to the batch's largest number with blank ones."""
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, [IMAGE] * 4) for row in rows]))
    most = max(row.images for row in rows)
    if most:
        pixels = torch.zeros(len(rows), most, 3, 16, 16)
        for index, row in enumerate(rows):
            for place, seed in enumerate(image_seeds([row])):
                pixels[index, place] = random_pixels(seed, (3, 16, 16))
        batch["pixel_values"] = pixels
        batch["pixel_attention_mask"] = torch.ones(len(rows), most, 16, 16, dtype=torch.bool)
    return batch


def _idefics2() -> PreTrainedModel:
    """SigLIP, a perceiver resampler and Mistral."""
    config = Idefics2Config(
        vision_config=dict(VISION),
        perceiver_config={
            "hidden_size": 32,
            "resampler_n_latents": 4,
            "resampler_depth": 2,
            "resampler_n_heads": 2,
            "resampler_head_dim": 16,
            "num_key_value_heads": 1,
        },
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_id=IMAGE,
    )
    return tiny(Idefics2ForConditionalGeneration, config)


def _idefics3() -> PreTrainedModel:
    """SigLIP with pixel shuffle, and Llama."""
    config = Idefics3Config(
        vision_config={**VISION, "patch_size": 4},
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        pad_token_id=PAD,
    )
    return tiny(Idefics3ForConditionalGeneration, config)


def _smolvlm() -> PreTrainedModel:
    """As Idefics3, under a name of its own."""
    config = SmolVLMConfig(
        vision_config={**VISION, "patch_size": 4},
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        pad_token_id=PAD,
    )
    return tiny(SmolVLMForConditionalGeneration, config)


FAMILIES: tuple[Family, ...] = (
    Family("idefics2", _idefics2, _by_prompt, "model.text_model.layers"),
    Family("idefics3", _idefics3, _by_prompt, "model.text_model.layers"),
    Family("smolvlm", _smolvlm, _by_prompt, "model.text_model.layers"),
)
