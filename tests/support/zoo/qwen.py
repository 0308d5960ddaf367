"""The Qwen-VL line and models made like it: flattened patches with a grid, and rotary positions in 3-D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import IMAGE, IMAGE_END, IMAGE_START, VIDEO, VIDEO_END, VIDEO_START, Family, Row, text, vision
from .batches import FRAME, PATCH, images, patches, square_patches
from .llava import QWEN2, UNTIED

ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
HALF_ROPE: dict[str, Any] = {**ROPE, "partial_rotary_factor": 0.5}

VIT: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": PATCH,
    "out_hidden_size": 32,
}
"""Vision towers with the option names of Qwen-VL."""
WINDOWS: dict[str, Any] = {**VIT, "window_size": 16, "fullatt_block_indexes": [1]}
POSITIONS: dict[str, Any] = {**VIT, "num_position_embeddings": 16}
DEEPSTACK: dict[str, Any] = {**POSITIONS, "deepstack_visual_indexes": [0]}
_DEEPER: dict[str, Any] = {**POSITIONS, "depth": 3, "deepstack_visual_indexes": [0, 1]}
TOWER: dict[str, Any] = vision(without=("image_size",), patch_size=PATCH)
"""Vision towers with the option names of SigLIP, on patches."""
MARKS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": IMAGE_START,
    "vision_end_token_id": IMAGE_END,
}
IMAGE_AND_VIDEO: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": VIDEO}
MARKS_GLM: dict[str, Any] = {
    **IMAGE_AND_VIDEO,
    "image_start_token_id": IMAGE_START,
    "image_end_token_id": IMAGE_END,
    "video_start_token_id": VIDEO_START,
    "video_end_token_id": VIDEO_END,
}
# Qwen's own line here has other ids: video 4, start 5, end 6.
_MARKS_QWEN: dict[str, Any] = {
    **MARKS, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6,
}  # fmt: skip

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MROPE, MROPE_8 = text(rope_parameters=ROPE), text(head_dim=8, rope_parameters=ROPE)
_QWEN3_VL: dict[str, Any] = text(head_dim=8, rope_parameters={**ROPE, "mrope_interleaved": True})
_VIT_GLM: dict[str, Any] = {**VIT, "out_hidden_size": 64, "image_size": 16}
_TEXT_GLM: dict[str, Any] = text(hidden_size=64, rope_parameters=HALF_ROPE)
_GLM46V: dict[str, Any] = {
    "vision_config": {"model_type": "glm4v_vision", **_VIT_GLM},
    "text_config": {"model_type": "glm4v_text", **_TEXT_GLM},
    **MARKS_GLM,
}
PATCHES, UNTYPED = patches(), patches(types=False)


def _own_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image a grid of 4 by 4 patches, merged to four placeholders between a start and an end token."""
    batch = images([5, *[IMAGE] * 4, 6], (16, 2 * FRAME), types="mm_token_type_ids")(model, rows)
    if "pixel_values" in batch:
        batch["image_grid_thw"] = torch.tensor([(1, 4, 4)] * len(batch["pixel_values"]))
        batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
    return batch


def _merged_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Patches of one frame, with the merge size of each image."""
    batch = patches(FRAME, types=False)(model, rows)
    if "pixel_values" in batch:
        batch["image_merge_sizes"] = torch.tensor([2] * len(batch["image_grid_thw"]))
    return batch


def hyperclovax(**scaled: float) -> dict[str, Any]:
    """The configuration of HyperCLOVAX; attention is added to the stream times its ``residual_multiplier``."""
    return {
        "vision_config": {"model_type": "qwen2_5_vl_vision", **WINDOWS},
        "text_config": text("hyperclovax", **scaled),
        **IMAGE_AND_VIDEO,
        **UNTIED,
    }


FAMILIES: tuple[Family, ...] = (
    # A vision tower with windowed attention, and Qwen2.5.
    Family(
        "qwen2_5_vl",
        {"vision_config": {**WINDOWS, "window_size": 8}, "text_config": MROPE, **_MARKS_QWEN},
        _own_patches,
    ),
    # A vision tower without windows, and Qwen2.
    Family(
        "qwen2_vl",
        {
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "mlp_ratio": 2,
                "num_heads": 2,
                "patch_size": PATCH,
            },
            "text_config": MROPE,
            **_MARKS_QWEN,
        },
        _own_patches,
    ),
    # Features of inner vision layers added onto the first decoder layers' output, and Qwen3.
    Family("qwen3_vl", {"vision_config": _DEEPER, "text_config": _QWEN3_VL, **_MARKS_QWEN}, _own_patches),
    # As Qwen3-VL, with experts.
    Family(
        "qwen3_vl_moe",
        {"vision_config": _DEEPER, "text_config": {**_QWEN3_VL, **EXPERTS}, **_MARKS_QWEN},
        _own_patches,
    ),
    # GLM-4.1V: norms around attention, and the one named for after attention stands before the feed-forward.
    Family(
        "glm4v",
        {
            "vision_config": {**VIT, "image_size": 16},
            "text_config": MROPE,
            "image_token_id": IMAGE,
            "video_token_id": 4,
            "image_start_token_id": 5,
            "image_end_token_id": 6,
            "video_start_token_id": 7,
            "video_end_token_id": 8,
        },
        _own_patches,
        update="post_self_attn_layernorm",
    ),
    # The tower and the sandwich-norm decoder of GLM-4V.
    Family("glm46v", _GLM46V, PATCHES, update="post_self_attn_layernorm"),
    # The classes of GLM-4.6V with another configuration class.
    Family("glmga", _GLM46V, PATCHES, update="post_self_attn_layernorm"),
    # The tower of GLM-4V, and a mixture of experts without sandwich norms.
    Family(
        "glm4v_moe",
        {
            "vision_config": _VIT_GLM,
            "text_config": {
                **_TEXT_GLM,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
            },
            **MARKS_GLM,
        },
        PATCHES,
    ),
    # The sandwich-norm decoder of GLM-4V with a smaller tower.
    Family(
        "glm_ocr",
        {
            "vision_config": _VIT_GLM,
            "text_config": text(hidden_size=64, head_dim=16, rope_parameters={**ROPE, "mrope_section": [4, 2, 2]}),
            **MARKS_GLM,
        },
        PATCHES,
        update="post_self_attn_layernorm",
    ),
    # The tower of Qwen3-VL, and Cohere's layers with attention and MLP in parallel.
    Family(
        "cohere_compass",
        {
            "vision_config": DEEPSTACK,
            "text_config": text(rope_parameters={"full_attention": ROPE}, logit_scale=1.0),
            **MARKS,
        },
        PATCHES,
    ),
    # A SigLIP-like tower on patches, and layers with squared ReLU.
    Family(
        "cosmos3_edge",
        {
            "vision_config": {**TOWER, "num_patches": 16},
            "text_config": MROPE_8,
            "projector_hidden_size": 48,
            **MARKS,
        },
        patches(FRAME),
        notes=("no_cache",),
    ),
    # The parts of Qwen3-VL in another model class.
    Family(
        "cosmos3_omni",
        {
            "vision_config": {"model_type": "qwen3_vl_vision", **DEEPSTACK},
            "text_config": {"model_type": "qwen3_vl_text", **MROPE_8},
            **MARKS,
        },
        PATCHES,
    ),
    # The tower of Qwen2.5-VL, and EXAONE 4 with norms after attention and after the MLP only.
    Family(
        "exaone4_5",
        {
            "vision_config": {"model_type": "exaone4_5_vision", **WINDOWS, "num_key_value_heads": 1},
            "text_config": text("exaone4", sliding_window=8),
            **IMAGE_AND_VIDEO,
        },
        UNTYPED,
        update="post_attention_layernorm",
    ),
    # The tower of Qwen2.5-VL, and layers with a norm after attention; the residual multiplier is one.
    Family("hyperclovax_vision_v2", hyperclovax(), UNTYPED, update="post_norm1"),
    # A tower with learned row ends, and a Llama with norms on queries and keys. Placeholders also for the ends of the
    # image and its rows: eight in all.
    Family(
        "hunyuan_vl",
        {
            "vision_config": {**TOWER, "out_hidden_size": 32, "max_image_size": 16, "img_max_token_num": 16},
            "text_config": text(head_dim=8, rope_parameters={**ROPE, "mrope_section": [1, 1, 1, 1]}),
            "image_token_id": IMAGE,
            "im_start_id": IMAGE_START,
            "im_end_id": IMAGE_END,
            "im_newline_id": 8,
            **UNTIED,
        },
        patches(FRAME, image=[IMAGE_START, *[IMAGE] * 8, IMAGE_END]),
        notes=("padding",),
    ),
    # A SigLIP-like tower on patches, and the layers of Ernie 4.5.
    Family(
        "paddleocr_vl",
        {"vision_config": {**TOWER, "image_size": 16}, "text_config": MROPE_8, **UNTIED, **MARKS},
        square_patches(types=True),
    ),
    # A SigLIP-like tower on patches, and Qwen2 with plain positions.
    Family("video_llama_3", {"vision_config": TOWER, "text_config": QWEN2, **IMAGE_AND_VIDEO}, _merged_patches),
)
