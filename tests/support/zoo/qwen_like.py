"""The Qwen-VL line: flattened patches with a grid, and rotary positions in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from .base import (
    IMAGE,
    TEXT,
    Family,
    Row,
    image_batch,
    tiny,
    token_types,
)

_VIDEO = 4
_START = 5
_END = 6
_PATCH = 4
_GRID = (1, 4, 4)
_SPECIAL: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": _VIDEO,
    "vision_start_token_id": _START,
    "vision_end_token_id": _END,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}


def _patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image a grid of 4 by 4 patches, merged to four placeholders between a start and an end token."""
    batch = image_batch(rows, [_START, *[IMAGE] * 4, _END], (_GRID[1] * _GRID[2], 3 * 2 * _PATCH * _PATCH))
    batch["mm_token_type_ids"] = token_types(batch["input_ids"])
    if "pixel_values" in batch:
        batch["image_grid_thw"] = torch.tensor([_GRID] * len(batch["pixel_values"]))
        batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
    return batch


def _qwen2_5_vl() -> PreTrainedModel:
    """A vision tower with windowed attention, and Qwen2.5."""
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": _PATCH,
            "window_size": 8,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
        },
        text_config={**TEXT, "rope_parameters": dict(_ROPE)},
        **_SPECIAL,
    )
    return tiny(Qwen2_5_VLForConditionalGeneration, config)


def _qwen2_vl() -> PreTrainedModel:
    """A vision tower without windows, and Qwen2."""
    config = Qwen2VLConfig(
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "mlp_ratio": 2,
            "num_heads": 2,
            "patch_size": _PATCH,
        },
        text_config={**TEXT, "rope_parameters": dict(_ROPE)},
        **_SPECIAL,
    )
    return tiny(Qwen2VLForConditionalGeneration, config)


_DEEPSTACK: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": _PATCH,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}


def _qwen3_vl() -> PreTrainedModel:
    """Features of inner vision layers added onto the first decoder layers' output, and Qwen3."""
    config = Qwen3VLConfig(
        vision_config=dict(_DEEPSTACK),
        text_config={**TEXT, "head_dim": 8, "rope_parameters": {**_ROPE, "mrope_interleaved": True}},
        **_SPECIAL,
    )
    return tiny(Qwen3VLForConditionalGeneration, config)


def _qwen3_vl_moe() -> PreTrainedModel:
    """As Qwen3-VL, with experts."""
    config = Qwen3VLMoeConfig(
        vision_config=dict(_DEEPSTACK),
        text_config={
            **TEXT,
            "head_dim": 8,
            "rope_parameters": {**_ROPE, "mrope_interleaved": True},
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        **_SPECIAL,
    )
    return tiny(Qwen3VLMoeForConditionalGeneration, config)


def _glm4v() -> PreTrainedModel:
    """GLM-4.1V: norms around attention, and the one named for after attention stands before the feed-forward."""
    config = Glm4vConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "image_size": 16,
            "patch_size": _PATCH,
            "out_hidden_size": 32,
        },
        text_config={**TEXT, "rope_parameters": dict(_ROPE)},
        image_token_id=IMAGE,
        video_token_id=_VIDEO,
        image_start_token_id=_START,
        image_end_token_id=_END,
        video_start_token_id=7,
        video_end_token_id=8,
    )
    return tiny(Glm4vForConditionalGeneration, config)


FAMILIES: tuple[Family, ...] = (
    Family("qwen2_5_vl", _qwen2_5_vl, _patches, "model.language_model.layers"),
    Family("qwen2_vl", _qwen2_vl, _patches, "model.language_model.layers"),
    Family("qwen3_vl", _qwen3_vl, _patches, "model.language_model.layers"),
    Family("qwen3_vl_moe", _qwen3_vl_moe, _patches, "model.language_model.layers"),
    Family("glm4v", _glm4v, _patches, "model.language_model.layers", "post_self_attn_layernorm"),
)
