"""Attention of unusual kinds: latent or sparse, with mixers, indexers or short convolutions beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import AUDIO, IMAGE, IMAGE_END, IMAGE_START, VIDEO, VOCAB, Family, Row, silence, text, vision
from .batches import (
    FOUR,
    FRAME,
    PATCH,
    WRAPPED,
    Inputs,
    image_seeds,
    images,
    patches,
    random_pixels,
    square_patches,
    token_batch,
)
from .llava import PIXTRAL_32, SIZED_32, UNTIED
from .qwen import IMAGE_AND_VIDEO, MARKS, TOWER, UNTYPED

SPARSE = ["dense", "sparse", "sparse", "sparse"]
ROUTED_EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT: dict[str, Any] = text(
    num_key_value_heads=4,
    **ROUTED_EXPERTS,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=8,
)
"""Decoders with the latent attention of DeepSeek-V3."""
_GEMMA4: dict[str, Any] = text(
    num_hidden_layers=6,
    head_dim=8,
    global_head_dim=16,
    sliding_window=8,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=2,
)
_MARKS_GEMMA4: dict[str, Any] = {
    "boi_token_id": IMAGE_START,
    "eoi_token_id": IMAGE_END,
    **IMAGE_AND_VIDEO,
    "audio_token_id": AUDIO,
    "boa_token_id": 8,
    "eoa_token_index": 9,
    "audio_config": None,
    **UNTIED,
}
MUSE_TOWER: dict[str, Any] = {**TOWER, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}


def _placed(side: int, features: int) -> Inputs:
    """Four tokens to an image, its patches and the place of each of them."""

    def inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = images(WRAPPED, (side * side, features), types="mm_token_type_ids")(model, rows)
        if "pixel_values" in batch:
            places = torch.tensor([[x, y] for y in range(side) for x in range(side)])
            batch["image_position_ids"] = torch.stack([places] * len(batch["pixel_values"]))
        return batch

    return inputs


def _cubes(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four patches of two frames to an image, one token to a patch."""
    batch = token_batch(rows, [IMAGE_START, *FOUR])
    seeds = image_seeds(rows)
    if seeds:
        batch["pixel_values"] = torch.cat([random_pixels(seed, (4, 2, PATCH, PATCH, 3)) for seed in seeds])
    return batch


def _grid_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches to an image, four tokens, and the grid of each image."""
    batch = patches(FRAME, types=False)(model, rows)
    if "pixel_values" in batch:
        batch["image_grid_hw"] = batch.pop("image_grid_thw")[:, 1:]
    return batch


def _silence_decoder(model: Any) -> None:
    """Treat the head, which the whole model does not name as its own."""
    silence(model.language_model.get_output_embeddings())


FAMILIES: tuple[Family, ...] = (
    # Sandwich norms, inputs for each layer, and keys and values that the last two layers share.
    Family(
        "gemma4",
        {
            "text_config": {**_GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
            "vision_config": {
                **TOWER,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "pooling_kernel_size": 2,
                "position_embedding_size": 16,
            },
            **_MARKS_GEMMA4,
        },
        _placed(4, FRAME),
        update="post_attention_layernorm",
    ),
    # The decoder of Gemma4 without a vision tower; the tokens of an image attend to each other in both directions. Two
    # by two patches of double width, one to a token.
    Family(
        "gemma4_unified",
        {
            "text_config": _GEMMA4,
            "vision_config": {
                "patch_size": PATCH,
                "pooling_kernel_size": 2,
                "mm_embed_dim": 32,
                "mm_posemb_size": 16,
                "output_proj_dims": 32,
            },
            **_MARKS_GEMMA4,
        },
        _placed(2, 4 * FRAME),
        update="post_attention_layernorm",
        notes=("static",),
    ),
    # A tower on patches, and DeepSeek-V3.
    Family(
        "kimi_k25",
        {
            "text_config": {"model_type": "deepseek_v3", **_LATENT},
            "vision_config": {**TOWER, "pos_emb_height": 4, "pos_emb_width": 4},
            "projection_hidden_size": 32,
            **MARKS,
            **UNTIED,
        },
        square_patches(types=False),
    ),
    # Pixtral and Mistral4 in the classes of Mistral3, for Mistral4 itself is a decoder without images.
    Family(
        "mistral3",
        {
            "vision_config": PIXTRAL_32,
            "text_config": {"model_type": "mistral4", **_LATENT},
            "image_token_index": IMAGE,
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
        },
        SIZED_32,
        key="mistral3-mistral4",
    ),
    # A mixture of experts with block-sparse attention in each second layer.
    Family(
        "minimax_m3_vl",
        {
            "text_config": text(
                head_dim=8,
                rotary_dim=4,
                num_local_experts=4,
                num_experts_per_tok=2,
                dense_intermediate_size=64,
                shared_intermediate_size=32,
                layer_types=["full_attention", "minimax_m3_sparse"] * 2,
                mlp_layer_types=SPARSE,
                index_n_heads=2,
                index_head_dim=8,
                index_block_size=4,
                index_topk_blocks=3,
            ),
            "vision_config": {**TOWER, "hidden_size": 48, "image_size": 16},
            "image_token_index": IMAGE,
            "video_token_index": VIDEO,
            "projector_hidden_size": 32,
        },
        UNTYPED,
        notes=("padding",),
    ),
    # A tower with windows, and sandwich norms around attention without positions in the last layer.
    Family(
        "muse_glimmer",
        {
            "text_config": text(head_dim=8, sliding_window=8, output_multiplier=1.0),
            "vision_config": MUSE_TOWER,
            **IMAGE_AND_VIDEO,
            "out_hidden_size": 128,
            "projector_hidden_size": 48,
        },
        UNTYPED,
        update="post_attention_layernorm",
    ),
    # Attention with relative positions, and a short convolution between attention and residual stream.
    Family(
        "inkling_mm_model",
        {
            "text_config": text(
                without=("tie_word_embeddings",),
                **ROUTED_EXPERTS,
                head_dim=8,
                swa_num_attention_heads=4,
                swa_num_key_value_heads=2,
                swa_head_dim=8,
                sliding_window_size=8,
                d_rel=4,
                rel_extent=16,
                layer_types=["hybrid_sliding", "hybrid"] * 2,
                mlp_layer_types=SPARSE,
                n_shared_experts=1,
                route_scale=1.0,
                logits_mup_width_multiplier=1.0,
            ),
            "vision_config": {
                "patch_size": PATCH,
                "hidden_size": 32,
                "num_hidden_layers": 4,
                "num_attention_heads": 2,
            },
            "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 8},
            "image_token_id": IMAGE,
            "audio_token_id": AUDIO,
            "image_bos_token_id": IMAGE_START,
            "audio_bos_token_id": 8,
        },
        _cubes,
        update="attn_sconv",
        notes=("static",),
    ),
    # Latent attention to what an indexer picks (here all tokens); layer 2 has the keys and values of layer 1.
    Family(
        "mistral_large4",
        {
            "vision_config": PIXTRAL_32,
            "text_config": text(
                **ROUTED_EXPERTS,
                num_key_value_heads=4,
                kv_lora_rank=16,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                v_head_dim=8,
                index_topk=64,
                index_head_dim=16,
                index_n_heads=2,
                kv_source_layers=[0, 1, 1, 3],
                indexer_types=["full", "full", "shared", "full"],
            ),
            "image_token_index": IMAGE,
        },
        SIZED_32,
    ),
    # Layers of one mixer each: recurrent, attention, experts or MLP.
    Family(
        "nemotron_h_omni",
        {
            "vision_config": {
                **vision("radio", without=("intermediate_size",), patch_size=PATCH),
                "mlp_ratio": 1.5,
                "max_img_size": 32,
                "num_cls_tokens": 1,
                "num_registers": 1,
                "video_temporal_patch_size": 2,
            },
            "text_config": text(
                "nemotron_h",
                without=("num_hidden_layers",),
                **ROUTED_EXPERTS,
                layers_block_type=["linear_attention", "full_attention", "moe", "full_attention", "mlp"],
                head_dim=8,
                ssm_state_size=8,
                mamba_num_heads=4,
                mamba_head_dim=16,
                n_groups=2,
                chunk_size=8,
                moe_shared_expert_intermediate_size=32,
            ),
            "audio_config": None,
            "projector_hidden_size": 32,
            "vision_hidden_size": 32,
            **IMAGE_AND_VIDEO,
            "audio_token_id": AUDIO,
        },
        _grid_patches,
        "language_model.model.layers",
        "mixer",
        no_attention_layers=(0, 2, 4),
        notes=("lookup",),
        after=_silence_decoder,
    ),
    # A mixture of experts with gated heads, of which layers with a sliding window have more.
    Family(
        "step3p7",
        {
            "text_config": text(
                **ROUTED_EXPERTS,
                head_dim=8,
                layer_types=["full_attention", "sliding_attention"] * 2,
                sliding_window=8,
                num_sliding_attention_heads=6,
                mlp_layer_types=SPARSE,
                share_expert_dim=32,
            ),
            "vision_config": {**TOWER, "image_size": 32, "mlp_ratio": 1.5, "max_position_embeddings": 64},
            "image_token_id": IMAGE,
        },
        images(FOUR, (3, 32, 32)),
    ),
)
