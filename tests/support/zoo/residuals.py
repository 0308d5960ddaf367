"""Models that do not simply add the attention output to one residual stream.

Two scale it by a constant, which RUDDER accounts for: they are in ``FAMILIES``. The others gate it or spread it over
several streams with learned weights, so that ``h + A + v`` does not exist: they are in ``REFUSED`` and serve to test
that they are refused.
"""

from __future__ import annotations

from .base import AUDIO, IMAGE, Family, text, vision
from .batches import images
from .hybrids import LINEAR
from .qwen import EXPERTS, HALF_ROPE, IMAGE_AND_VIDEO, MARKS, MARKS_GLM, PATCHES, POSITIONS, UNTYPED, VIT, hyperclovax
from .unusual import MUSE_TOWER, ROUTED_EXPERTS, SPARSE

FAMILIES: tuple[Family, ...] = (
    # Half of what attention gives is added to the stream; image features are added between layers, too. One overview
    # and one tile to an image: four tokens, and two rows of two tokens and a separator.
    Family(
        "granite4_vision",
        {
            "vision_config": vision("clip_vision_model", hidden_size=64, image_size=32),
            "text_config": text(
                "granite4_vision_text",
                residual_multiplier=0.5,
                attention_multiplier=0.35,
                embedding_multiplier=2.0,
                logits_scaling=1.0,
            ),
            "qformer_config": {
                "model_type": "blip_2_qformer",
                "num_hidden_layers": 1,
                "intermediate_size": 48,
                "cross_attention_frequency": 1,
                "use_qformer_text_input": False,
            },
            "image_token_index": IMAGE,
            "image_grid_pinpoints": [[32, 32]],
            "downsample_rate": "1/2",
            "deepstack_layer_map": [(-1, 0)],
            "spatial_target_layers": [1, 2],
            "vision_feature_layer": -1,
        },
        images([IMAGE] * 10, (2, 3, 32, 32), sizes=(32, 32)),
    ),
    # A norm after attention, and half of its output is added to the stream.
    Family(
        "hyperclovax_vision_v2",
        hyperclovax(residual_multiplier=0.5),
        UNTYPED,
        update="post_norm1",
        key="hyperclovax-scaled",
    ),
)

REFUSED: tuple[Family, ...] = (
    # Stream and attention are added with a learned weight each.
    Family(
        "muse_spark",
        {
            "text_config": text(
                head_dim=8,
                sliding_window=8,
                output_multiplier=1.0,
                moe_intermediate_size=32,
                moe_hidden_size=32,
                num_local_experts=4,
                num_experts_per_tok=2,
                mlp_layer_types=SPARSE,
            ),
            "vision_config": MUSE_TOWER,
            "audio_config": {
                "patch_sizes": [2],
                "hidden_sizes": [16],
                "depths": [1],
                "num_hidden_layers": 1,
                "out_hidden_size": 32,
            },
            **IMAGE_AND_VIDEO,
            "audio_token_id": AUDIO,
            "out_hidden_size": 128,
            "projector_hidden_size": 48,
        },
        UNTYPED,
        update="post_attention_layernorm",
    ),
    # Two streams side by side in the features; what attention gives enters each with a weight of its own.
    Family(
        "qwen4_exp",
        {
            "vision_config": POSITIONS,
            "text_config": text(
                without=("intermediate_size",),
                head_dim=16,
                rope_parameters=HALF_ROPE,
                layer_types=["linear_attention", "indexed_attention"] * 2,
                **LINEAR,
                **EXPERTS,
                shared_expert_intermediate_size=32,
                hc_count=2,
                hc_lowrank=8,
                indexer_n_heads=2,
                indexer_kv_heads=1,
                indexer_head_dim=8,
                indexer_budget=64,
                indexer_compress_ratio=4,
            ),
            **MARKS,
        },
        PATCHES,
        no_attention_layers=(0, 2),
        notes=("lookup",),
    ),
    # Two streams in a dimension of their own, mixed with weights that depend on the data.
    Family(
        "glm5_next",
        {
            "vision_config": {**VIT, "image_size": 16, "projection_intermediate_size": 48},
            "text_config": text(
                **ROUTED_EXPERTS,
                num_key_value_heads=4,
                kv_lora_rank=16,
                q_lora_rank=16,
                v_head_dim=8,
                qk_nope_head_dim=8,
                index_topk=64,
                index_head_dim=8,
                index_n_heads=2,
                index_kpool=4,
                layer_types=["linear_attention", "indexed_attention"] * 2,
                mlp_layer_types=SPARSE,
                linear_head_dim=8,
                linear_num_heads=4,
                hc_mult=2,
                hc_sinkhorn_iters=4,
            ),
            **MARKS_GLM,
        },
        PATCHES,
        no_attention_layers=(0, 2),
        notes=("lookup",),
    ),
)
