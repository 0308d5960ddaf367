"""Decoders whose layers mix other modules into attention: short convolutions, recurrent mixers, indexers, gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    InklingConfig,
    InklingForConditionalGeneration,
    MistralLarge4Config,
    MistralLarge4ForConditionalGeneration,
    NemotronH_Omni_Reasoning_V3,
    NemotronH_Omni_Reasoning_V3_Config,
    PixtralVisionConfig,
    PreTrainedModel,
    Step3p7Config,
    Step3p7ForConditionalGeneration,
)

from .base import (
    FIRST_WORD,
    IMAGE,
    TEXT,
    VISION,
    Family,
    Row,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    silence,
    tiny,
)
from .placeholders import (
    AUDIO,
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

_EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _inkling() -> PreTrainedModel:
    """Attention with relative positions, and a short convolution between attention and residual stream."""
    config = InklingConfig(
        text_config={
            **{key: value for key, value in TEXT.items() if key != "tie_word_embeddings"},
            **_EXPERTS,
            "head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 8,
            "sliding_window_size": 8,
            "d_rel": 4,
            "rel_extent": 16,
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "n_shared_experts": 1,
            "route_scale": 1.0,
            "logits_mup_width_multiplier": 1.0,
        },
        vision_config={"patch_size": _PATCH, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2},
        audio_config={"n_mel_bins": 4, "mel_vocab_size": 8},
        image_token_id=IMAGE,
        audio_token_id=AUDIO,
        image_bos_token_id=IMAGE_START,
        audio_bos_token_id=8,
    )
    return tiny(InklingForConditionalGeneration, config)


def _cubes(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four patches of two frames to an image, one token to a patch."""
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, [IMAGE_START] + [IMAGE] * 4) for row in rows]))
    seeds = image_seeds(rows)
    if seeds:
        batch["pixel_values"] = torch.cat([random_pixels(seed, (4, 2, _PATCH, _PATCH, 3)) for seed in seeds])
    return batch


def _mistral_large4() -> PreTrainedModel:
    """Latent attention to what an indexer picks (here all tokens); layer 2 has the keys and values of layer 1."""
    config = MistralLarge4Config(
        vision_config=PixtralVisionConfig(**{**VISION, "image_size": 32, "head_dim": 16}),
        text_config={
            **TEXT,
            **_EXPERTS,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "index_topk": 64,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "kv_source_layers": [0, 1, 1, 3],
            "indexer_types": ["full", "full", "shared", "full"],
        },
        image_token_index=IMAGE,
    )
    return tiny(MistralLarge4ForConditionalGeneration, config)


def _sized_32(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image of 32 by 32 pixels, and the sizes of the images."""
    batch = with_pixels(rows, [IMAGE] * 4, (3, 32, 32))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[32, 32]] * len(batch["pixel_values"]))
    return batch


def _nemotron_h_omni() -> PreTrainedModel:
    """Layers of one mixer each: recurrent, attention, experts or MLP."""
    config = NemotronH_Omni_Reasoning_V3_Config(
        vision_config={
            "model_type": "radio",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "mlp_ratio": 1.5,
            "patch_size": _PATCH,
            "image_size": 16,
            "max_img_size": 32,
            "num_cls_tokens": 1,
            "num_registers": 1,
            "video_temporal_patch_size": 2,
        },
        text_config={
            "model_type": "nemotron_h",
            **{key: value for key, value in TEXT.items() if key != "num_hidden_layers"},
            **_EXPERTS,
            "layers_block_type": ["linear_attention", "full_attention", "moe", "full_attention", "mlp"],
            "head_dim": 8,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
            "moe_shared_expert_intermediate_size": 32,
        },
        audio_config=None,
        projector_hidden_size=32,
        vision_hidden_size=32,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
    )

    def soften(model: Any) -> None:
        """Treat the head, which the whole model does not name as its own."""
        silence(model.language_model.get_output_embeddings(), range(FIRST_WORD), 3.0)

    return tiny(NemotronH_Omni_Reasoning_V3, config, after=soften)


def _grid_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Sixteen patches to an image, four tokens, and the grid of each image."""
    batch = with_patches(rows, 3 * _PATCH**2, types=False)
    if "pixel_values" in batch:
        batch["image_grid_hw"] = batch.pop("image_grid_thw")[:, 1:]
    return batch


def _step3p7() -> PreTrainedModel:
    """A mixture of experts with gated heads, of which layers with a sliding window have more."""
    config = Step3p7Config(
        text_config={
            **TEXT,
            "head_dim": 8,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "sliding_window": 8,
            "num_sliding_attention_heads": 6,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "share_expert_dim": 32,
        },
        vision_config={**_TOWER, "image_size": 32, "mlp_ratio": 1.5, "max_position_embeddings": 64},
        image_token_id=IMAGE,
    )
    return tiny(Step3p7ForConditionalGeneration, config)


def _global_view(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image of 32 by 32 pixels."""
    return with_pixels(rows, [IMAGE] * 4, (3, 32, 32))


FAMILIES: tuple[Family, ...] = (
    Family("inkling_mm_model", _inkling, _cubes, PATH, "attn_sconv", notes=("static",)),
    Family("mistral_large4", _mistral_large4, _sized_32, PATH),
    Family(
        "nemotron_h_omni",
        _nemotron_h_omni,
        _grid_patches,
        "language_model.model.layers",
        "mixer",
        no_attention_layers=(0, 2, 4),
        notes=("lookup",),
    ),
    Family("step3p7", _step3p7, _global_view, PATH),
)
