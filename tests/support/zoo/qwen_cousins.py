"""Models made like Qwen-VL from further decoders: patches of all images in one matrix, rotary positions in 3-D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    CohereCompassConfig,
    CohereCompassForConditionalGeneration,
    Cosmos3EdgeConfig,
    Cosmos3EdgeForConditionalGeneration,
    Cosmos3OmniConfig,
    Cosmos3OmniForConditionalGeneration,
    Exaone4_5_Config,
    Exaone4_5_ForConditionalGeneration,
    Exaone4Config,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    GlmgaConfig,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
    HunYuanVLConfig,
    HunYuanVLForConditionalGeneration,
    HyperCLOVAXConfig,
    HyperCLOVAXVisionV2Config,
    HyperCLOVAXVisionV2ForConditionalGeneration,
    PaddleOCRVLConfig,
    PaddleOCRVLForConditionalGeneration,
    PreTrainedModel,
    Qwen2Config,
    VideoLlama3Config,
    VideoLlama3ForConditionalGeneration,
)

from .base import (
    IMAGE,
    TEXT,
    Family,
    Row,
    left_pad,
    prompt_ids,
    tiny,
)
from .placeholders import (
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
"""Vision towers with the option names of Qwen-VL."""

_VIT_GLM: dict[str, Any] = {**_VIT, "out_hidden_size": 64, "image_size": 16}

_SIGLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": _PATCH,
}
"""Vision towers with the option names of SigLIP."""

_MARKS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": IMAGE_START,
    "vision_end_token_id": IMAGE_END,
}

_MARKS_GLM: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "image_start_token_id": IMAGE_START,
    "image_end_token_id": IMAGE_END,
    "video_start_token_id": VIDEO_START,
    "video_end_token_id": VIDEO_END,
}

_TEXT_GLM: dict[str, Any] = {
    **TEXT,
    "hidden_size": 64,
    "rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.5},
}


def _patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of two frames to an image, four tokens."""
    return with_patches(rows, _FEATURES)


def _patches_untyped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_patches`` without the types of the tokens."""
    return with_patches(rows, _FEATURES, types=False)


def _cohere_compass() -> PreTrainedModel:
    """The tower of Qwen3-VL, and Cohere's layers with attention and MLP in parallel."""
    config = CohereCompassConfig(
        vision_config={**_VIT, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        text_config={**TEXT, "rope_parameters": {"full_attention": dict(_SECTIONS)}, "logit_scale": 1.0},
        **_MARKS,
    )
    return tiny(CohereCompassForConditionalGeneration, config)


def _cosmos3_edge() -> PreTrainedModel:
    """A SigLIP-like tower on patches, and layers with squared ReLU."""
    config = Cosmos3EdgeConfig(
        vision_config={**_SIGLIP, "num_patches": 16},
        text_config={**TEXT, "head_dim": 8, "rope_parameters": dict(_SECTIONS)},
        projector_hidden_size=48,
        **_MARKS,
    )
    return tiny(Cosmos3EdgeForConditionalGeneration, config)


def _frame_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of one frame to an image, four tokens."""
    return with_patches(rows, 3 * _PATCH**2)


def _cosmos3_omni() -> PreTrainedModel:
    """The parts of Qwen3-VL in another model class."""
    config = Cosmos3OmniConfig(
        vision_config={
            "model_type": "qwen3_vl_vision",
            **_VIT,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        text_config={"model_type": "qwen3_vl_text", **TEXT, "head_dim": 8, "rope_parameters": dict(_SECTIONS)},
        **_MARKS,
    )
    return tiny(Cosmos3OmniForConditionalGeneration, config)


def _exaone4_5() -> PreTrainedModel:
    """The tower of Qwen2.5-VL, and EXAONE 4 with norms after attention and after the MLP only."""
    config = Exaone4_5_Config(
        vision_config={
            "model_type": "exaone4_5_vision",
            **_VIT,
            "num_key_value_heads": 1,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        text_config=Exaone4Config(**TEXT, sliding_window=8),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    return tiny(Exaone4_5_ForConditionalGeneration, config)


def _glm46v() -> PreTrainedModel:
    """The tower and the sandwich-norm decoder of GLM-4V."""
    config = Glm46VConfig(
        vision_config={"model_type": "glm4v_vision", **_VIT_GLM},
        text_config={"model_type": "glm4v_text", **_TEXT_GLM},
        **_MARKS_GLM,
    )
    return tiny(Glm46VForConditionalGeneration, config)


def _glmga() -> PreTrainedModel:
    """The classes of GLM-4.6V with another configuration class."""
    config = GlmgaConfig(
        vision_config={"model_type": "glm4v_vision", **_VIT_GLM},
        text_config={"model_type": "glm4v_text", **_TEXT_GLM},
        **_MARKS_GLM,
    )
    return tiny(Glm46VForConditionalGeneration, config)


def _glm4v_moe() -> PreTrainedModel:
    """The tower of GLM-4V, and a mixture of experts without sandwich norms."""
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = Glm4vMoeConfig(vision_config=dict(_VIT_GLM), text_config={**_TEXT_GLM, **experts}, **_MARKS_GLM)
    return tiny(Glm4vMoeForConditionalGeneration, config)


def _glm_ocr() -> PreTrainedModel:
    """The sandwich-norm decoder of GLM-4V with a smaller tower."""
    text = {**TEXT, "hidden_size": 64, "head_dim": 16, "rope_parameters": {**_SECTIONS, "mrope_section": [4, 2, 2]}}
    config = GlmOcrConfig(vision_config=dict(_VIT_GLM), text_config=text, **_MARKS_GLM)
    return tiny(GlmOcrForConditionalGeneration, config)


def _hyperclovax_vision_v2() -> PreTrainedModel:
    """The tower of Qwen2.5-VL, and layers with a norm after attention; the residual multiplier is one."""
    config = HyperCLOVAXVisionV2Config(
        vision_config={"model_type": "qwen2_5_vl_vision", **_VIT, "window_size": 16, "fullatt_block_indexes": [1]},
        text_config=HyperCLOVAXConfig(**TEXT),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        tie_word_embeddings=False,
    )
    return tiny(HyperCLOVAXVisionV2ForConditionalGeneration, config)


def _hunyuan_vl() -> PreTrainedModel:
    """A tower with learned row ends, and a Llama with norms on queries and keys."""
    config = HunYuanVLConfig(
        vision_config={**_SIGLIP, "out_hidden_size": 32, "max_image_size": 16, "img_max_token_num": 16},
        text_config={**TEXT, "head_dim": 8, "rope_parameters": {**_SECTIONS, "mrope_section": [1, 1, 1, 1]}},
        image_token_id=IMAGE,
        im_start_id=IMAGE_START,
        im_end_id=IMAGE_END,
        im_newline_id=8,
        tie_word_embeddings=False,
    )
    return tiny(HunYuanVLForConditionalGeneration, config)


def _marked_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_frame_patches``, with placeholders also for the ends of the image and its rows: eight in all."""
    batch = with_patches(rows, 3 * _PATCH**2, types=False)
    image = [IMAGE_START] + [IMAGE] * 8 + [IMAGE_END]
    batch.update(left_pad([prompt_ids(row, image) for row in rows]))
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    return batch


def _paddleocr_vl() -> PreTrainedModel:
    """A SigLIP-like tower on patches, and the layers of Ernie 4.5."""
    config = PaddleOCRVLConfig(
        vision_config={**_SIGLIP, "image_size": 16},
        text_config={**TEXT, "head_dim": 8, "rope_parameters": dict(_SECTIONS)},
        tie_word_embeddings=False,
        **_MARKS,
    )
    return tiny(PaddleOCRVLForConditionalGeneration, config)


def _square_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_frame_patches``, each patch as a small image."""
    batch = _frame_patches(model, rows)
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].view(-1, 3, _PATCH, _PATCH)
    return batch


def _video_llama_3() -> PreTrainedModel:
    """A SigLIP-like tower on patches, and Qwen2 with plain positions."""
    config = VideoLlama3Config(
        vision_config=dict(_SIGLIP),
        text_config=Qwen2Config(**TEXT),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    return tiny(VideoLlama3ForConditionalGeneration, config)


def _merged_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_frame_patches`` without types, with the merge size of each image."""
    batch = with_patches(rows, 3 * _PATCH**2, types=False)
    if "pixel_values" in batch:
        batch["image_merge_sizes"] = torch.tensor([2] * len(batch["image_grid_thw"]))
    return batch


FAMILIES: tuple[Family, ...] = (
    Family("cohere_compass", _cohere_compass, _patches, PATH),
    Family("cosmos3_edge", _cosmos3_edge, _frame_patches, PATH, notes=("no_cache",)),
    Family("cosmos3_omni", _cosmos3_omni, _patches, PATH),
    Family("exaone4_5", _exaone4_5, _patches_untyped, PATH, "post_attention_layernorm"),
    Family("glm46v", _glm46v, _patches, PATH, "post_self_attn_layernorm"),
    Family("glmga", _glmga, _patches, PATH, "post_self_attn_layernorm"),
    Family("glm4v_moe", _glm4v_moe, _patches, PATH),
    Family("glm_ocr", _glm_ocr, _patches, PATH, "post_self_attn_layernorm"),
    Family("hyperclovax_vision_v2", _hyperclovax_vision_v2, _patches_untyped, PATH, "post_norm1"),
    Family("hunyuan_vl", _hunyuan_vl, _marked_patches, PATH, notes=("padding",)),
    Family("paddleocr_vl", _paddleocr_vl, _square_patches, PATH),
    Family("video_llama_3", _video_llama_3, _merged_patches, PATH),
)
