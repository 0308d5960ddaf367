"""Models made like LLaVA from further vision towers and decoders: one entry of ``pixel_values`` to an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AriaConfig,
    AriaForConditionalGeneration,
    CLIPVisionConfig,
    Cohere2Config,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    DeepseekVLHybridConfig,
    DeepseekVLHybridForConditionalGeneration,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GotOcr2Config,
    GotOcr2ForConditionalGeneration,
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LlamaConfig,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    PixtralVisionConfig,
    PPChart2TableConfig,
    PreTrainedModel,
    QianfanOCRConfig,
    QianfanOCRForConditionalGeneration,
    Qwen2Config,
    Qwen3Config,
    SamVisionConfig,
    ShieldGemma2Config,
    SiglipVisionConfig,
)

from .base import (
    IMAGE,
    TEXT,
    VISION,
    Family,
    Row,
    image_seeds,
    random_pixels,
    tiny,
)
from .placeholders import IMAGE_END, IMAGE_START, PATH, with_pixels

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


def _four(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image of 16 by 16 pixels."""
    return with_pixels(rows, [IMAGE] * 4)


def _four_of_32(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image of 32 by 32 pixels."""
    return with_pixels(rows, [IMAGE] * 4, (3, 32, 32))


def _aria() -> PreTrainedModel:
    """A SigLIP-like tower of Idefics3, a cross-attention projector, and a mixture-of-experts Llama."""
    config = AriaConfig(
        vision_config={"model_type": "idefics3_vision", **VISION},
        text_config={**TEXT, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
        projector_patch_to_query_dict={4: 4},
        image_token_index=IMAGE,
    )
    return tiny(AriaForConditionalGeneration, config)


def _cohere2_vision() -> PreTrainedModel:
    """SigLIP with pixel shuffle and Cohere2, whose attention and MLP run in parallel."""
    config = Cohere2VisionConfig(
        vision_config=SiglipVisionConfig(**{**VISION, "image_size": 32, "vision_use_head": False}),
        text_config=Cohere2Config(**{**TEXT, "sliding_window": 8, "logit_scale": 1.0}),
        alignment_intermediate_size=64,
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(Cohere2VisionForConditionalGeneration, config)


def _deepseek_vl() -> PreTrainedModel:
    """SigLIP and Llama."""
    config = DeepseekVLConfig(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(DeepseekVLForConditionalGeneration, config)


def _deepseek_vl_hybrid() -> PreTrainedModel:
    """SigLIP beside SAM, and Llama."""
    config = DeepseekVLHybridConfig(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        high_res_vision_config=SamVisionConfig(**_SAM),
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(DeepseekVLHybridForConditionalGeneration, config)


def _two_resolutions(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image in two resolutions."""
    batch = _four(model, rows)
    seeds = image_seeds(rows)
    if seeds:
        batch["high_res_pixel_values"] = torch.stack([random_pixels(seed + 1, (3, 32, 32)) for seed in seeds])
    return batch


def _got_ocr2() -> PreTrainedModel:
    """SAM, convolutions, and Qwen2."""
    config = GotOcr2Config(
        vision_config=dict(_SAM),
        text_config=Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return tiny(GotOcr2ForConditionalGeneration, config)


def _pp_chart2table() -> PreTrainedModel:
    """The classes of GOT-OCR2 with another configuration class."""
    config = PPChart2TableConfig(
        vision_config=dict(_SAM),
        text_config=Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return tiny(GotOcr2ForConditionalGeneration, config)


def _lighton_ocr() -> PreTrainedModel:
    """Pixtral with merged patches, and Qwen3."""
    config = LightOnOcrConfig(
        vision_config=PixtralVisionConfig(**{**VISION, "image_size": 32, "head_dim": 16}),
        text_config=Qwen3Config(**TEXT, head_dim=8),
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(LightOnOcrForConditionalGeneration, config)


def _sized_32(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_four_of_32``, with the sizes of the images."""
    batch = _four_of_32(model, rows)
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[32, 32]] * len(batch["pixel_values"]))
    return batch


def _llava_next_video() -> PreTrainedModel:
    """CLIP on the image and on its tiles, and Llama."""
    config = LlavaNextVideoConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        video_token_index=6,
        image_grid_pinpoints=[[16, 16]],
    )
    return tiny(LlavaNextVideoForConditionalGeneration, config)


def _tiles(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One overview and one tile to an image: four tokens, and two rows of two tokens and a separator."""
    batch = with_pixels(rows, [IMAGE] * 10, (2, 3, 16, 16))
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[16, 16]] * len(batch["pixel_values"]))
    return batch


def _qianfan_ocr() -> PreTrainedModel:
    """An InternViT-like tower with pixel shuffle, and Qwen3."""
    config = QianfanOCRConfig(
        vision_config={**VISION, "image_size": 32, "drop_path_rate": 0.0},
        text_config=Qwen3Config(**TEXT, head_dim=8),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    return tiny(QianfanOCRForConditionalGeneration, config)


def _shieldgemma2() -> PreTrainedModel:
    """Gemma3 under the configuration of its classifier."""
    config = ShieldGemma2Config(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=Gemma3TextConfig(
            **{**TEXT, "num_hidden_layers": 6, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
        ),
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=IMAGE_START,
        eoi_token_index=IMAGE_END,
        tie_word_embeddings=False,
    )
    return tiny(Gemma3ForConditionalGeneration, config)


def _typed(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders between start and end of image, and the type of each token."""
    batch = with_pixels(rows, [IMAGE_START] + [IMAGE] * 4 + [IMAGE_END])
    batch["token_type_ids"] = (batch["input_ids"] == IMAGE).long()
    return batch


FAMILIES: tuple[Family, ...] = (
    Family("aria", _aria, _four, PATH),
    Family("cohere2_vision", _cohere2_vision, _four_of_32, PATH),
    Family("deepseek_vl", _deepseek_vl, _four, PATH),
    Family("deepseek_vl_hybrid", _deepseek_vl_hybrid, _two_resolutions, PATH),
    Family("got_ocr2", _got_ocr2, _four_of_32, PATH),
    Family("pp_chart2table", _pp_chart2table, _four_of_32, PATH),
    Family("lighton_ocr", _lighton_ocr, _sized_32, PATH),
    Family("llava_next_video", _llava_next_video, _tiles, PATH),
    Family("qianfan_ocr", _qianfan_ocr, _four_of_32, PATH),
    Family("shieldgemma2", _shieldgemma2, _typed, PATH, "post_attention_layernorm"),
)
