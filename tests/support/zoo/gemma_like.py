"""Gemma decoders: norms around attention, sliding windows, and image tokens that see each other both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    SiglipVisionConfig,
)

from .base import (
    IMAGE,
    TEXT,
    VISION,
    VOCAB,
    Family,
    Row,
    image_batch,
    tiny,
    token_types,
)

_START = 4
_END = 5


def _wrapped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image as four placeholders between a start and an end token."""
    batch = image_batch(rows, [_START, *[IMAGE] * 4, _END])
    batch["token_type_ids"] = token_types(batch["input_ids"])
    return batch


def _gemma3(window: int) -> PreTrainedModel:
    """SigLIP with pooling, and a decoder in which every third layer attends beyond the window."""
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(**{**VISION, "patch_size": 4}),
        text_config=Gemma3TextConfig(
            **{**TEXT, "num_hidden_layers": 6},
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=window,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        ),
        mm_tokens_per_image=4,
        boi_token_index=_START,
        eoi_token_index=_END,
        image_token_index=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(Gemma3ForConditionalGeneration, config)


def _gemma3_wide() -> PreTrainedModel:
    """Gemma 3 with a window wider than any test's sequence."""
    return _gemma3(256)


def _gemma3_narrow() -> PreTrainedModel:
    """Gemma 3 with a window that every test's sequence outgrows."""
    return _gemma3(8)


def _prefixed(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image; all of the prompt is prefix, whose tokens see each other both ways."""
    batch = image_batch(rows, [IMAGE] * 4)
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def _paligemma(text: PreTrainedConfig) -> PreTrainedModel:
    """SigLIP and one of the first two Gemmas."""
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=text,
        image_token_index=IMAGE,
        vocab_size=VOCAB,
        projection_dim=32,
        hidden_size=32,
        tie_word_embeddings=False,
    )
    return tiny(PaliGemmaForConditionalGeneration, config)


def _paligemma1() -> PreTrainedModel:
    """PaliGemma on Gemma."""
    return _paligemma(GemmaConfig(**TEXT, head_dim=8))


def _paligemma2() -> PreTrainedModel:
    """PaliGemma 2 on Gemma 2, with norms around attention and a window in every second layer."""
    return _paligemma(Gemma2Config(**TEXT, head_dim=8, query_pre_attn_scalar=8, sliding_window=256))


FAMILIES: tuple[Family, ...] = (
    Family("gemma3", _gemma3_wide, _wrapped, "model.language_model.layers", "post_attention_layernorm"),
    Family(
        "gemma3",
        _gemma3_narrow,
        _wrapped,
        "model.language_model.layers",
        "post_attention_layernorm",
        key="gemma3-window",
    ),
    Family("paligemma", _paligemma1, _prefixed, "model.language_model.layers"),
    Family(
        "paligemma",
        _paligemma2,
        _prefixed,
        "model.language_model.layers",
        "post_attention_layernorm",
        notes=("static",),
        key="paligemma-2",
    ),
)
