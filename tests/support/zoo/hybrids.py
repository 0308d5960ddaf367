"""Qwen-like models with layers without attention, with audio beside the image, or with experts for each modality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import AUDIO, IMAGE, IMAGE_END, IMAGE_START, VIDEO, Family, Row, text
from .batches import FRAME, PATCH, WRAPPED, Inputs, image_seeds, patches, random_pixels, token_batch
from .llava import UNTIED
from .qwen import (
    DEEPSTACK,
    EXPERTS,
    HALF_ROPE,
    IMAGE_AND_VIDEO,
    MARKS,
    MARKS_GLM,
    MROPE,
    MROPE_8,
    PATCHES,
    POSITIONS,
    ROPE,
    TOWER,
    UNTYPED,
    VIT,
    WINDOWS,
)

_NAVIT: dict[str, Any] = {**TOWER, "image_size": 32}
_AUDIO: dict[str, Any] = {
    "num_mel_bins": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 32,
    "output_dim": 32,
    "max_source_positions": 32,
}

LINEAR: dict[str, Any] = {
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
"""Recurrent mixers, which take the place of attention in some layers."""
_HYBRID: dict[str, Any] = text(
    head_dim=16, rope_parameters=HALF_ROPE, layer_types=["linear_attention", "full_attention"] * 2, **LINEAR
)
_QWEN3_5: dict[str, Any] = {"model_type": "qwen3_5_text", **_HYBRID}
_STATEFUL: dict[str, Any] = {"no_attention_layers": (0, 2), "notes": ("lookup",)}


def _routed_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Patches of one frame, and which tokens go to the experts for images."""
    batch = patches(FRAME)(model, rows)
    batch["moe_mm_token_type_ids"] = torch.isin(batch["input_ids"], torch.tensor(WRAPPED)).int()
    return batch


def _strip(side: int, typed: bool = False) -> Inputs:
    """Four tokens to an image; the patches of all images side by side in one long image of one patch in height."""

    def inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = token_batch(rows, WRAPPED)
        if typed:
            batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
        seeds = image_seeds(rows)
        if seeds:
            strips = [random_pixels(seed, (1, 3, PATCH, side * side * PATCH)) for seed in seeds]
            batch["pixel_values"] = torch.cat(strips, dim=-1)
            batch["target_sizes"] = torch.tensor([[side, side]] * len(seeds), dtype=torch.int32)
        return batch

    return inputs


FAMILIES: tuple[Family, ...] = (
    # The text part of Qwen2.5-Omni: Qwen2.5-VL with an audio encoder.
    Family(
        "qwen2_5_omni_thinker",
        {
            "vision_config": WINDOWS,
            "audio_config": _AUDIO,
            "text_config": MROPE,
            "image_token_index": IMAGE,
            "video_token_index": VIDEO,
            "audio_token_index": AUDIO,
            "vision_start_token_id": IMAGE_START,
            "vision_end_token_id": IMAGE_END,
            "audio_start_token_id": 8,
            "audio_end_token_id": 9,
        },
        UNTYPED,
    ),
    # The text part of Qwen3-Omni: Qwen3-VL-MoE with an audio encoder.
    Family(
        "qwen3_omni_moe_thinker",
        {
            "vision_config": DEEPSTACK,
            "audio_config": {**_AUDIO, "downsample_hidden_size": 8},
            "text_config": {**MROPE_8, **EXPERTS},
            **MARKS,
            "audio_token_id": AUDIO,
            "audio_start_token_id": 8,
        },
        UNTYPED,
    ),
    # A tower like that of Qwen3-VL, and layers of which each second one has gated attention, the others a mixer.
    Family("qwen3_5", {"vision_config": POSITIONS, "text_config": _HYBRID, **MARKS}, PATCHES, **_STATEFUL),
    # As Qwen3.5, with a mixture of experts.
    Family(
        "qwen3_5_moe",
        {
            "vision_config": POSITIONS,
            "text_config": {
                **{key: value for key, value in _HYBRID.items() if key != "intermediate_size"},
                **EXPERTS,
                "shared_expert_intermediate_size": 32,
            },
            **MARKS,
        },
        PATCHES,
        **_STATEFUL,
    ),
    # A tower like that of Qwen2-VL, and experts of their own for the tokens of the image.
    Family(
        "ernie4_5_vl_moe",
        {
            "vision_config": {key: value for key, value in VIT.items() if key != "out_hidden_size"},
            "text_config": text(
                rope_parameters={**ROPE, "mrope_section": [1, 1, 2]},
                moe_intermediate_size=[32, 16],
                moe_k=2,
                moe_num_experts=4,
                moe_num_shared_experts=1,
            ),
            **MARKS_GLM,
            **UNTIED,
        },
        _routed_patches,
        notes=("no_cache",),
    ),
    # A tower that merges windows half way up, and the decoder of Qwen3.5. Eight by eight patches, sixteen to a token.
    Family(
        "minicpmv4_6",
        {"vision_config": _NAVIT, "text_config": _QWEN3_5, "insert_layer_id": 0, **IMAGE_AND_VIDEO},
        _strip(8),
        **_STATEFUL,
    ),
    # As MiniCPM-V 4.6, with rotary positions in 3-D.
    Family(
        "minicpmv4_7",
        {
            "vision_config": _NAVIT,
            "text_config": _QWEN3_5,
            "insert_layer_id": 0,
            **IMAGE_AND_VIDEO,
            "image_start_id": IMAGE_START,
            "image_end_id": IMAGE_END,
            "slice_start_id": 7,
            "slice_end_id": 8,
            "newline_id": 9,
        },
        _strip(8, typed=True),
        **_STATEFUL,
    ),
    # As MiniCPM-V 4.6, without the merging of windows. Four by four patches, four to a token.
    Family(
        "minicpm_ocr",
        {"vision_config": _NAVIT, "text_config": _QWEN3_5, **IMAGE_AND_VIDEO, **UNTIED},
        _strip(4),
        **_STATEFUL,
    ),
)
