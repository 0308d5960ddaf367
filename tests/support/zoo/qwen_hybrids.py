"""Qwen-like models with layers without attention, with audio beside the image, or with experts for each modality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Ernie4_5_VLMoeConfig,
    Ernie4_5_VLMoeForConditionalGeneration,
    MiniCPMOcrConfig,
    MiniCPMOcrForConditionalGeneration,
    MiniCPMV4_6Config,
    MiniCPMV4_6ForConditionalGeneration,
    MiniCPMV4_7Config,
    MiniCPMV4_7ForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from .base import (
    IMAGE,
    TEXT,
    Family,
    Row,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    tiny,
)
from .placeholders import (
    AUDIO,
    IMAGE_END,
    IMAGE_START,
    PATH,
    VIDEO,
    VIDEO_END,
    VIDEO_START,
    with_patches,
)

_PATCH = 4
_FEATURES = 3 * 2 * _PATCH**2
_SECTIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}

_VIT: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": _PATCH,
    "out_hidden_size": 32,
}

_MARKS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": IMAGE_START,
    "vision_end_token_id": IMAGE_END,
}

_AUDIO: dict[str, Any] = {
    "num_mel_bins": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 32,
    "output_dim": 32,
    "max_source_positions": 32,
}

_HYBRID: dict[str, Any] = {
    **TEXT,
    "head_dim": 16,
    "rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.5},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
"""Decoders of Qwen3.5: layers 0 and 2 have a recurrent mixer and no attention."""

_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

_NO_ATTENTION = (0, 2)
_STATEFUL = ("lookup",)


def _patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of two frames to an image, four tokens."""
    return with_patches(rows, _FEATURES)


def _patches_untyped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_patches`` without the types of the tokens."""
    return with_patches(rows, _FEATURES, types=False)


def _qwen2_5_omni_thinker() -> PreTrainedModel:
    """The text part of Qwen2.5-Omni: Qwen2.5-VL with an audio encoder."""
    config = Qwen2_5OmniThinkerConfig(
        vision_config={**_VIT, "window_size": 16, "fullatt_block_indexes": [1]},
        audio_config=dict(_AUDIO),
        text_config={**TEXT, "rope_parameters": dict(_SECTIONS)},
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        audio_token_index=AUDIO,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
        audio_start_token_id=8,
        audio_end_token_id=9,
    )
    return tiny(Qwen2_5OmniThinkerForConditionalGeneration, config)


def _qwen3_omni_moe_thinker() -> PreTrainedModel:
    """The text part of Qwen3-Omni: Qwen3-VL-MoE with an audio encoder."""
    config = Qwen3OmniMoeThinkerConfig(
        vision_config={**_VIT, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        audio_config={**_AUDIO, "downsample_hidden_size": 8},
        text_config={**TEXT, **_EXPERTS, "head_dim": 8, "rope_parameters": dict(_SECTIONS)},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
        audio_start_token_id=8,
    )
    return tiny(Qwen3OmniMoeThinkerForConditionalGeneration, config)


def _qwen3_5() -> PreTrainedModel:
    """A tower like that of Qwen3-VL, and layers of which each second one has gated attention."""
    config = Qwen3_5Config(vision_config={**_VIT, "num_position_embeddings": 16}, text_config=dict(_HYBRID), **_MARKS)
    return tiny(Qwen3_5ForConditionalGeneration, config)


def _qwen3_5_moe() -> PreTrainedModel:
    """As Qwen3.5, with a mixture of experts."""
    text = {**_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 32}
    text.pop("intermediate_size")
    config = Qwen3_5MoeConfig(vision_config={**_VIT, "num_position_embeddings": 16}, text_config=text, **_MARKS)
    return tiny(Qwen3_5MoeForConditionalGeneration, config)


def _ernie4_5_vl_moe() -> PreTrainedModel:
    """A tower like that of Qwen2-VL, and experts of their own for the tokens of the image."""
    config = Ernie4_5_VLMoeConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": _PATCH,
        },
        text_config={
            **TEXT,
            "rope_parameters": {**_SECTIONS, "mrope_section": [1, 1, 2]},
            "moe_intermediate_size": [32, 16],
            "moe_k": 2,
            "moe_num_experts": 4,
            "moe_num_shared_experts": 1,
        },
        image_token_id=IMAGE,
        image_start_token_id=IMAGE_START,
        image_end_token_id=IMAGE_END,
        video_token_id=VIDEO,
        video_start_token_id=VIDEO_START,
        video_end_token_id=VIDEO_END,
        tie_word_embeddings=False,
    )
    return tiny(Ernie4_5_VLMoeForConditionalGeneration, config)


def _routed_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of one frame, four tokens, and which tokens go to the experts for images."""
    batch = with_patches(rows, 3 * _PATCH**2)
    ids = batch["input_ids"]
    batch["moe_mm_token_type_ids"] = ((ids == IMAGE) | (ids == IMAGE_START) | (ids == IMAGE_END)).int()
    return batch


_NAVIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": _PATCH,
}


def _minicpmv4_6() -> PreTrainedModel:
    """A tower that merges windows half way up, and the decoder of Qwen3.5."""
    config = MiniCPMV4_6Config(
        vision_config=dict(_NAVIT),
        text_config=Qwen3_5TextConfig(**_HYBRID),
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    return tiny(MiniCPMV4_6ForConditionalGeneration, config)


def _minicpmv4_7() -> PreTrainedModel:
    """As MiniCPM-V 4.6, with rotary positions in 3-D."""
    config = MiniCPMV4_7Config(
        vision_config=dict(_NAVIT),
        text_config=Qwen3_5TextConfig(**_HYBRID),
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_start_id=IMAGE_START,
        image_end_id=IMAGE_END,
        slice_start_id=7,
        slice_end_id=8,
        newline_id=9,
    )
    return tiny(MiniCPMV4_7ForConditionalGeneration, config)


def _minicpm_ocr() -> PreTrainedModel:
    """As MiniCPM-V 4.6, without the merging of windows."""
    config = MiniCPMOcrConfig(
        vision_config=dict(_NAVIT),
        text_config=Qwen3_5TextConfig(**_HYBRID),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        tie_word_embeddings=False,
    )
    return tiny(MiniCPMOcrForConditionalGeneration, config)


def _strip(rows: Sequence[Row], side: int) -> dict[str, Any]:
    """Four tokens to an image; the patches of all images side by side in one long image of one patch in height."""
    image = [IMAGE_START] + [IMAGE] * 4 + [IMAGE_END]
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image) for row in rows]))
    seeds = image_seeds(rows)
    if seeds:
        strips = [random_pixels(seed, (1, 3, _PATCH, side * side * _PATCH)) for seed in seeds]
        batch["pixel_values"] = torch.cat(strips, dim=-1)
        batch["target_sizes"] = torch.tensor([[side, side]] * len(seeds), dtype=torch.int32)
    return batch


def _strip_8(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Images of eight by eight patches, sixteen of them to a token."""
    return _strip(rows, 8)


def _typed_strip_8(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_strip_8``, with the type of each token."""
    batch = _strip(rows, 8)
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    return batch


def _strip_4(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Images of four by four patches, four of them to a token."""
    return _strip(rows, 4)


FAMILIES: tuple[Family, ...] = (
    Family("qwen2_5_omni_thinker", _qwen2_5_omni_thinker, _patches_untyped, PATH),
    Family("qwen3_omni_moe_thinker", _qwen3_omni_moe_thinker, _patches_untyped, PATH),
    Family("qwen3_5", _qwen3_5, _patches, PATH, no_attention_layers=_NO_ATTENTION, notes=_STATEFUL),
    Family("qwen3_5_moe", _qwen3_5_moe, _patches, PATH, no_attention_layers=_NO_ATTENTION, notes=_STATEFUL),
    Family("ernie4_5_vl_moe", _ernie4_5_vl_moe, _routed_patches, PATH, notes=("no_cache",)),
    Family("minicpmv4_6", _minicpmv4_6, _strip_8, PATH, no_attention_layers=_NO_ATTENTION, notes=_STATEFUL),
    Family("minicpmv4_7", _minicpmv4_7, _typed_strip_8, PATH, no_attention_layers=_NO_ATTENTION, notes=_STATEFUL),
    Family("minicpm_ocr", _minicpm_ocr, _strip_4, PATH, no_attention_layers=_NO_ATTENTION, notes=_STATEFUL),
)
