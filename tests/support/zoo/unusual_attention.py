"""Models with unusual decoders: norms around attention, latent or sparse attention, discrete image tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    Emu3Config,
    Emu3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Mistral4Config,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
)

from .base import (
    FIRST_WORD,
    IMAGE,
    TEXT,
    VISION,
    VOCAB,
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
    with_patches,
    with_pixels,
)

_PATCH = 4

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": _PATCH,
}

_LATENT: dict[str, Any] = {
    **TEXT,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
"""Decoders with the latent attention of DeepSeek-V3."""


def _emu3() -> PreTrainedModel:
    """A Llama on discrete image tokens of a VQ-VAE; the vocabulary holds them above the words."""
    codes = 32
    visual = {f"<|visual token {code:06d}|>": VOCAB + code for code in range(codes)}
    config = Emu3Config(
        vq_config={
            "codebook_size": codes,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "hidden_size": 32,
            "attn_resolutions": [],
            "temporal_downsample_factor": 1,
        },
        text_config={**TEXT, "vocab_size": VOCAB + codes},
        vocabulary_map={"<image>": IMAGE, "<|extra_200|>": 7, **visual},
    )
    special = [*range(FIRST_WORD), *range(VOCAB, VOCAB + codes)]
    return tiny(Emu3ForConditionalGeneration, config, special=special)


def _rows_of_codes(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two rows of two codes and a row end to an image, and the sizes of the images."""
    batch = with_pixels(rows, [IMAGE_START] + [IMAGE] * 6 + [IMAGE_END], (3, 4, 4))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[4, 4]] * len(batch["pixel_values"]))
    return batch


_GEMMA4: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 6,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
}

_MARKS_GEMMA4: dict[str, Any] = {
    "boi_token_id": IMAGE_START,
    "eoi_token_id": IMAGE_END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "audio_token_id": AUDIO,
    "boa_token_id": 8,
    "eoa_token_index": 9,
    "tie_word_embeddings": False,
}


def _gemma4() -> PreTrainedModel:
    """Sandwich norms, inputs for each layer, and keys and values that the last two layers share."""
    config = Gemma4Config(
        text_config={**_GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
        vision_config={
            **_TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pooling_kernel_size": 2,
            "position_embedding_size": 16,
        },
        audio_config=None,
        **_MARKS_GEMMA4,
    )
    return tiny(Gemma4ForConditionalGeneration, config)


def _placed(rows: Sequence[Row], side: int, features: int) -> dict[str, Any]:
    """Four tokens to an image, its patches and the place of each of them."""
    image = [IMAGE_START] + [IMAGE] * 4 + [IMAGE_END]
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image) for row in rows]))
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).long()
    seeds = image_seeds(rows)
    if seeds:
        places = torch.tensor([[x, y] for y in range(side) for x in range(side)])
        batch["pixel_values"] = torch.stack([random_pixels(seed, (side * side, features)) for seed in seeds])
        batch["image_position_ids"] = torch.stack([places] * len(seeds))
    return batch


def _placed_4(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four by four patches, four of them to a token."""
    return _placed(rows, 4, 3 * _PATCH**2)


def _gemma4_unified() -> PreTrainedModel:
    """The decoder of Gemma4 without a vision tower; the tokens of an image attend to each other in both directions."""
    config = Gemma4UnifiedConfig(
        text_config=dict(_GEMMA4),
        vision_config={
            "patch_size": _PATCH,
            "pooling_kernel_size": 2,
            "mm_embed_dim": 32,
            "mm_posemb_size": 16,
            "output_proj_dims": 32,
        },
        audio_config=None,
        **_MARKS_GEMMA4,
    )
    return tiny(Gemma4UnifiedForConditionalGeneration, config)


def _placed_2(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two by two patches of double width, one to a token."""
    return _placed(rows, 2, 3 * (2 * _PATCH) ** 2)


def _kimi_k25() -> PreTrainedModel:
    """A tower on patches, and DeepSeek-V3."""
    config = Kimi_K25Config(
        text_config=DeepseekV3Config(**_LATENT),
        vision_config={**_TOWER, "pos_emb_height": 4, "pos_emb_width": 4},
        projection_hidden_size=32,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
        tie_word_embeddings=False,
    )
    return tiny(Kimi_K25ForConditionalGeneration, config)


def _square_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches to an image, each a small image, four tokens."""
    batch = with_patches(rows, 3 * _PATCH**2, types=False)
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].view(-1, 3, _PATCH, _PATCH)
    return batch


def _mistral4() -> PreTrainedModel:
    """Pixtral and Mistral4 in the classes of Mistral3, for Mistral4 itself is a decoder without images."""
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(**{**VISION, "image_size": 32, "head_dim": 16}),
        text_config=Mistral4Config(**_LATENT),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return tiny(Mistral3ForConditionalGeneration, config)


def _sized_32(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image of 32 by 32 pixels, and the sizes of the images."""
    batch = with_pixels(rows, [IMAGE] * 4, (3, 32, 32))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[32, 32]] * len(batch["pixel_values"]))
    return batch


def _minimax_m3_vl() -> PreTrainedModel:
    """A mixture of experts with block-sparse attention in each second layer."""
    config = MiniMaxM3VLConfig(
        text_config={
            **TEXT,
            "head_dim": 8,
            "rotary_dim": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "dense_intermediate_size": 64,
            "shared_intermediate_size": 32,
            "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "index_n_heads": 2,
            "index_head_dim": 8,
            "index_block_size": 4,
            "index_topk_blocks": 3,
        },
        vision_config={**_TOWER, "hidden_size": 48, "num_attention_heads": 2, "image_size": 16},
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        projector_hidden_size=32,
    )
    return tiny(MiniMaxM3SparseForConditionalGeneration, config)


def _patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches of two frames to an image, four tokens."""
    return with_patches(rows, 3 * 2 * _PATCH**2, types=False)


def _muse_glimmer() -> PreTrainedModel:
    """A tower with windows, and sandwich norms around attention without positions in the last layer."""
    config = MuseGlimmerConfig(
        text_config={**TEXT, "head_dim": 8, "sliding_window": 8, "output_multiplier": 1.0},
        vision_config={**_TOWER, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        out_hidden_size=128,
        projector_hidden_size=48,
    )
    return tiny(MuseGlimmerForConditionalGeneration, config)


FAMILIES: tuple[Family, ...] = (
    Family("emu3", _emu3, _rows_of_codes, "model.text_model.layers"),
    Family("gemma4", _gemma4, _placed_4, PATH, "post_attention_layernorm"),
    Family("gemma4_unified", _gemma4_unified, _placed_2, PATH, "post_attention_layernorm", notes=("static",)),
    Family("kimi_k25", _kimi_k25, _square_patches, PATH),
    Family("mistral3", _mistral4, _sized_32, PATH, key="mistral3-mistral4"),
    Family("minimax_m3_vl", _minimax_m3_vl, _patches, PATH, notes=("padding",)),
    Family("muse_glimmer", _muse_glimmer, _patches, PATH, "post_attention_layernorm"),
)
