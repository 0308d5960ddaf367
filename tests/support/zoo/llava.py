"""LLaVA and the models made like it: a vision tower, a projector, image features in place of placeholder tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import IMAGE, VIDEO, VOCAB, Family, Row, text, vision
from .batches import FOUR, FRAME, WRAPPED, image_seeds, images, random_pixels

UNTIED = {"tie_word_embeddings": False}
CLIP = vision("clip_vision_model")
SIGLIP = vision("siglip_vision_model", vision_use_head=False)
PIXTRAL_32 = vision("pixtral", image_size=32, head_dim=16)
LLAMA, QWEN2 = text("llama"), text("qwen2")
MISTRAL = text("mistral", sliding_window=None)
QWEN3 = text("qwen3", head_dim=8)

_LLAVA = {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": IMAGE}
_SAM: dict[str, Any] = {
    "hidden_size": 32,
    "output_channels": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 4,
    "window_size": 4,
    "global_attn_indexes": [1],
    "mlp_dim": 48,
}
_GOT_OCR2 = {
    "vision_config": _SAM, "text_config": QWEN2, "image_token_index": IMAGE, "image_seq_length": 4, **UNTIED,
}  # fmt: skip
_VIDEO_OF_LLAVA = 4
_INDICATORS = [5, 6, 7, 8, 9]
_PINPOINTS = [[16, 32], [32, 16], [32, 32]]

_FOUR = images()
_FOUR_OF_32 = images(FOUR, (3, 32, 32))
SIZED_32 = images(FOUR, (3, 32, 32), sizes=(32, 32))
# The placeholders of each row of patches are closed by a token that stays text.
_ROWS = [IMAGE, IMAGE, 4, IMAGE, IMAGE, 5]
# Images twice as wide as high: the whole and two tiles, so 4 placeholders and 2 rows of 4 and a line end.
_TILED = images([IMAGE] * 14, (3, 3, 16, 16), sizes=(16, 32))


def _two_resolutions(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image in two resolutions."""
    batch = _FOUR(model, rows)
    seeds = image_seeds(rows)
    if seeds:
        batch["high_res_pixel_values"] = torch.stack([random_pixels(seed + 1, (3, 32, 32)) for seed in seeds])
    return batch


FAMILIES: tuple[Family, ...] = (
    # CLIP and Llama.
    Family("llava", {**_LLAVA, "image_seq_length": 4}, _FOUR),
    # Pixtral, which is a LLaVA with another vision tower, and Mistral.
    Family(
        "llava",
        {
            "vision_config": vision("pixtral"),
            "text_config": MISTRAL,
            "image_token_index": IMAGE,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "image_seq_length": 1,
        },
        images([IMAGE, IMAGE, 5, IMAGE, IMAGE, 6], sizes=(16, 16)),
        key="llava-pixtral",
    ),
    # CLIP on tiles, and Mistral.
    Family(
        "llava_next",
        {**_LLAVA, "text_config": MISTRAL, "image_grid_pinpoints": _PINPOINTS, "image_seq_length": 4},
        _TILED,
    ),
    # SigLIP on tiles, and Qwen2.
    Family(
        "llava_onevision",
        {
            "vision_config": SIGLIP,
            "text_config": QWEN2,
            "image_token_index": IMAGE,
            "video_token_index": _VIDEO_OF_LLAVA,
            "image_grid_pinpoints": _PINPOINTS,
        },
        _TILED,
    ),
    # Features of several CLIP layers, and Llama.
    Family("vipllava", {**_LLAVA, "vision_feature_layers": [-2, -1, 0], "image_seq_length": 4}, _FOUR),
    # A tower for images beside one for videos, and Llama.
    Family(
        "video_llava",
        {**_LLAVA, "video_token_index": _VIDEO_OF_LLAVA, "image_seq_length": 4, "video_seq_length": 4},
        _FOUR,
    ),
    # CLIP on the image and on its tiles, and Llama. One overview and one tile to an image: four tokens, and two rows
    # of two tokens and a separator.
    Family(
        "llava_next_video",
        {**_LLAVA, "video_token_index": VIDEO, "image_grid_pinpoints": [[16, 16]]},
        images([IMAGE] * 10, (2, 3, 16, 16), sizes=(16, 16)),
    ),
    # A SigLIP-like tower of Idefics3, a cross-attention projector, and a mixture-of-experts Llama.
    Family(
        "aria",
        {
            "vision_config": vision("idefics3_vision"),
            "text_config": text(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
            "projector_patch_to_query_dict": {4: 4},
            "image_token_index": IMAGE,
        },
        _FOUR,
    ),
    # SigLIP with pixel shuffle and Cohere2, whose attention and MLP run in parallel.
    Family(
        "cohere2_vision",
        {
            "vision_config": {**SIGLIP, "image_size": 32},
            "text_config": text("cohere2", sliding_window=8, logit_scale=1.0),
            "alignment_intermediate_size": 64,
            "image_token_id": IMAGE,
            **UNTIED,
        },
        _FOUR_OF_32,
    ),
    # SigLIP and Llama.
    Family("deepseek_vl", {"vision_config": SIGLIP, "text_config": LLAMA, "image_token_id": IMAGE, **UNTIED}, _FOUR),
    # SigLIP beside SAM, and Llama.
    Family(
        "deepseek_vl_hybrid",
        {
            "vision_config": SIGLIP,
            "high_res_vision_config": {"model_type": "sam_vision_model", **_SAM},
            "text_config": LLAMA,
            "image_token_id": IMAGE,
            **UNTIED,
        },
        _two_resolutions,
    ),
    # SAM, convolutions, and Qwen2.
    Family("got_ocr2", _GOT_OCR2, _FOUR_OF_32),
    # The classes of GOT-OCR2 with another configuration class.
    Family("pp_chart2table", _GOT_OCR2, _FOUR_OF_32),
    # Pixtral with merged patches, and Qwen3.
    Family(
        "lighton_ocr", {"vision_config": PIXTRAL_32, "text_config": QWEN3, "image_token_id": IMAGE, **UNTIED}, SIZED_32
    ),
    # An InternViT-like tower with pixel shuffle, and Qwen3.
    Family(
        "qianfan_ocr",
        {
            "vision_config": vision(image_size=32, drop_path_rate=0.0),
            "text_config": QWEN3,
            "image_token_id": IMAGE,
            "image_seq_length": 4,
        },
        _FOUR_OF_32,
    ),
    # A tower with layer scale and pixel shuffle, and Qwen2.
    Family(
        "internvl",
        {
            "vision_config": vision(image_size=[16, 16], patch_size=[4, 4]),
            "text_config": QWEN2,
            "image_token_id": IMAGE,
            "image_seq_length": 4,
            **UNTIED,
        },
        images(WRAPPED),
    ),
    # Pixtral's tower with merged patches, and Mistral.
    Family(
        "mistral3",
        {
            "vision_config": vision("pixtral", patch_size=4),
            "text_config": MISTRAL,
            "image_token_index": IMAGE,
            **UNTIED,
        },
        images(_ROWS, sizes=(16, 16)),
        gain=2.5,
    ),
    # SigLIP, and Cohere2, whose layers run attention and feed-forward side by side on one residual.
    Family(
        "aya_vision",
        {
            "vision_config": {**SIGLIP, "patch_size": 4},
            "text_config": text("cohere2", sliding_window=256, logit_scale=1.0),
            "image_token_index": IMAGE,
            **UNTIED,
        },
        _FOUR,
    ),
    # A model that can also draw: SigLIP for seeing, a quantiser for drawing, and Llama.
    Family(
        "janus",
        {
            "vision_config": vision(projection_dim=32, mlp_ratio=2.0, num_image_tokens=4),
            "vq_config": {
                "embed_dim": 8,
                "num_embeddings": 16,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "projection_dim": 32,
                "image_token_embed_dim": 32,
            },
            "text_config": LLAMA,
            "image_token_id": IMAGE,
            **UNTIED,
        },
        images(WRAPPED),
    ),
    # A tower that says how much of each visual word a patch is, and Qwen2.
    Family(
        "ovis2",
        {
            "vision_config": vision(vocab_size=40, hidden_stride=1),
            "text_config": QWEN2,
            "image_token_id": IMAGE,
            "visual_indicator_token_ids": _INDICATORS,
            "vocab_size": VOCAB,
            "hidden_size": 32,
            **UNTIED,
        },
        images([_INDICATORS[0], *FOUR, _INDICATORS[1]]),
    ),
    # A convolutional tower (a ResNet here; FastViT is timm's), and Qwen2.
    Family(
        "fast_vlm",
        {
            "vision_config": {
                "model_type": "resnet",
                "embedding_size": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "layer_type": "basic",
                "hidden_size": 32,
            },
            "text_config": QWEN2,
            "image_token_index": IMAGE,
            "image_seq_length": 4,
        },
        _FOUR,
    ),
    # No vision tower at all: patches go through one linear map into Persimmon. Two rows of two flattened patches, each
    # row closed by a token that stays text.
    Family(
        "fuyu",
        {
            "text_config": text("persimmon", without=("num_key_value_heads", "tie_word_embeddings")),
            "image_size": 8,
            "patch_size": 4,
            "image_token_id": IMAGE,
        },
        images([IMAGE, IMAGE, 4, IMAGE, IMAGE, 4], (4, FRAME)),
        notes=("beams",),
        gain=2.0,
    ),
)
