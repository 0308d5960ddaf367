"""Models that do not simply add the attention output to one residual stream.

Two scale it by a constant, which RUDDER accounts for: they are in ``FAMILIES``. The others gate it or spread it over
several streams with learned weights, so that ``h + A + v`` does not exist: they are in ``REFUSED`` and serve to test
that they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    Granite4VisionConfig,
    Granite4VisionForConditionalGeneration,
    Granite4VisionTextConfig,
    HyperCLOVAXConfig,
    HyperCLOVAXVisionV2Config,
    HyperCLOVAXVisionV2ForConditionalGeneration,
    MuseSparkConfig,
    MuseSparkForConditionalGeneration,
    PreTrainedModel,
    Qwen4ExpConfig,
    Qwen4ExpForConditionalGeneration,
)

from .base import IMAGE, TEXT, Family, Row, tiny
from .placeholders import (
    AUDIO,
    IMAGE_END,
    IMAGE_START,
    PATH,
    VIDEO,
    VIDEO_END,
    VIDEO_START,
    with_patches,
    with_pixels,
)

_PATCH = 4
_FEATURES = 3 * 2 * _PATCH**2

_VIT: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": _PATCH,
    "out_hidden_size": 32,
}


def _patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of two frames to an image, four tokens."""
    return with_patches(rows, _FEATURES)


def _patches_untyped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_patches`` without the types of the tokens."""
    return with_patches(rows, _FEATURES, types=False)


def _granite4_vision() -> PreTrainedModel:
    """Half of what attention gives is added to the stream; image features are added between layers, too."""
    config = Granite4VisionConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
        ),
        text_config=Granite4VisionTextConfig(
            **TEXT, residual_multiplier=0.5, attention_multiplier=0.35, embedding_multiplier=2.0, logits_scaling=1.0
        ),
        qformer_config={
            "model_type": "blip_2_qformer",
            "num_hidden_layers": 1,
            "intermediate_size": 48,
            "cross_attention_frequency": 1,
            "use_qformer_text_input": False,
        },
        image_token_index=IMAGE,
        image_grid_pinpoints=[[32, 32]],
        downsample_rate="1/2",
        deepstack_layer_map=[(-1, 0)],
        spatial_target_layers=[1, 2],
        vision_feature_layer=-1,
    )
    return tiny(Granite4VisionForConditionalGeneration, config)


def _tiles(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One overview and one tile to an image: four tokens, and two rows of two tokens and a separator."""
    batch = with_pixels(rows, [IMAGE] * 10, (2, 3, 32, 32))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[32, 32]] * len(batch["pixel_values"]))
    return batch


def _hyperclovax() -> PreTrainedModel:
    """A norm after attention, and half of its output is added to the stream."""
    config = HyperCLOVAXVisionV2Config(
        vision_config={"model_type": "qwen2_5_vl_vision", **_VIT, "window_size": 16, "fullatt_block_indexes": [1]},
        text_config=HyperCLOVAXConfig(**TEXT, residual_multiplier=0.5),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        tie_word_embeddings=False,
    )
    return tiny(HyperCLOVAXVisionV2ForConditionalGeneration, config)


def _muse_spark() -> PreTrainedModel:
    """Stream and attention are added with a learned weight each."""
    config = MuseSparkConfig(
        text_config={
            **TEXT,
            "head_dim": 8,
            "sliding_window": 8,
            "output_multiplier": 1.0,
            "moe_intermediate_size": 32,
            "moe_hidden_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "patch_size": _PATCH,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "max_position_embeddings": 16,
        },
        audio_config={
            "patch_sizes": [2],
            "hidden_sizes": [16],
            "depths": [1],
            "num_hidden_layers": 1,
            "out_hidden_size": 32,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        out_hidden_size=128,
        projector_hidden_size=48,
    )
    return tiny(MuseSparkForConditionalGeneration, config)


def _qwen4_exp() -> PreTrainedModel:
    """Two streams side by side in the features; what attention gives enters each with a weight of its own."""
    config = Qwen4ExpConfig(
        vision_config={**_VIT, "num_position_embeddings": 16},
        text_config={
            **{key: value for key, value in TEXT.items() if key != "intermediate_size"},
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.5,
            },
            "layer_types": ["linear_attention", "indexed_attention"] * 2,
            "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "hc_count": 2,
            "hc_lowrank": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 64,
            "indexer_compress_ratio": 4,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
    )
    return tiny(Qwen4ExpForConditionalGeneration, config)


def _glm5_next() -> PreTrainedModel:
    """Two streams in a dimension of their own, mixed with weights that depend on the data."""
    config = Glm5NextConfig(
        vision_config={**_VIT, "image_size": 16, "projection_intermediate_size": 48},
        text_config={
            **TEXT,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "v_head_dim": 8,
            "qk_nope_head_dim": 8,
            "index_topk": 64,
            "index_head_dim": 8,
            "index_n_heads": 2,
            "index_kpool": 4,
            "layer_types": ["linear_attention", "indexed_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 4,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_start_token_id=IMAGE_START,
        image_end_token_id=IMAGE_END,
        video_start_token_id=VIDEO_START,
        video_end_token_id=VIDEO_END,
    )
    return tiny(Glm5NextForConditionalGeneration, config)


FAMILIES: tuple[Family, ...] = (
    Family("granite4_vision", _granite4_vision, _tiles, PATH),
    Family("hyperclovax_vision_v2", _hyperclovax, _patches_untyped, PATH, "post_norm1", key="hyperclovax-scaled"),
)
REFUSED: tuple[Family, ...] = (
    Family("muse_spark", _muse_spark, _patches_untyped, PATH, "post_attention_layernorm"),
    Family("qwen4_exp", _qwen4_exp, _patches, PATH, no_attention_layers=(0, 2), notes=("lookup",)),
    Family("glm5_next", _glm5_next, _patches, PATH, no_attention_layers=(0, 2), notes=("lookup",)),
)
