"""Models of the early-fusion kind: image codes as vocabulary, mixtures of experts, features added to embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Llama4Config,
    Llama4ForConditionalGeneration,
    Molmo2Config,
    Molmo2ForConditionalGeneration,
    PreTrainedModel,
)

from .base import (
    IMAGE,
    TEXT,
    VOCAB,
    Family,
    Row,
    image_batch,
    tiny,
    token_types,
)

_START = 4
_END = 5
_CODES = 16
_EXTRA = 8
_PATCH = VOCAB
_LOW_START, _HIGH_START, _CROP_END = VOCAB + 1, VOCAB + 2, VOCAB + 3


def _chameleon(swin_norm: bool) -> PreTrainedModel:
    """Images quantised to codes that are words of the vocabulary, its last sixteen here."""
    letters = [f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z" for code in range(_CODES)]
    codes = {letter: VOCAB - _CODES + code for code, letter in enumerate(letters)}
    config = ChameleonConfig(
        **TEXT,
        swin_norm=swin_norm,
        vq_config={
            "embed_dim": 32,
            "num_embeddings": _CODES,
            "latent_channels": 32,
            "resolution": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
        },
        vocabulary_map={"<image>": IMAGE, **codes},
    )
    if swin_norm:
        return tiny(ChameleonForConditionalGeneration, config, embed=2.0)
    return tiny(ChameleonForConditionalGeneration, config, gain=2.5)


def _chameleon_plain() -> PreTrainedModel:
    """The 7B model's layers: norms before attention and feed-forward."""
    return _chameleon(swin_norm=False)


def _chameleon_swin() -> PreTrainedModel:
    """The 30B model's layers: the norm named for the input comes after attention."""
    return _chameleon(swin_norm=True)


def _coded(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image between a start and an end token, and no image code among the words."""
    return image_batch(rows, [_START, *[IMAGE] * 4, _END], high=VOCAB - _CODES)


def _llama4(chunk: int) -> PreTrainedModel:
    """Experts in every second layer, chunked attention with rotary positions but for the last layer."""
    config = Llama4Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
        text_config={
            **TEXT,
            "intermediate_size_mlp": 64,
            "head_dim": 8,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": chunk,
        },
        boi_token_index=_START,
        eoi_token_index=_END,
        image_token_index=IMAGE,
    )
    return tiny(Llama4ForConditionalGeneration, config)


def _llama4_wide() -> PreTrainedModel:
    """Llama 4 with chunks longer than any test's sequence."""
    return _llama4(256)


def _llama4_narrow() -> PreTrainedModel:
    """Llama 4 with chunks that every test's sequence outgrows."""
    return _llama4(8)


def _wrapped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image, between a start and an end token."""
    return image_batch(rows, [_START, *[IMAGE] * 4, _END])


def _molmo2(norm_after: bool) -> PreTrainedModel:
    """Features added onto the placeholders' embeddings; special tokens beyond the head's vocabulary."""
    tower = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    text = {key: value for key, value in TEXT.items() if not key.endswith("token_id")}
    config = Molmo2Config(
        vision_config={
            **tower,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "image_size": [16, 16],
            "patch_size": 4,
        },
        adapter_config={**tower, "vision_feature_layer": [-1, 0], "intermediate_size": 48, "text_hidden_size": 32},
        text_config={**text, "head_dim": 8, "additional_vocab_size": _EXTRA, "norm_after": norm_after},
        image_patch_id=_PATCH,
        low_res_image_start_token_id=_LOW_START,
        image_start_token_id=_HIGH_START,
        image_end_token_id=_CROP_END,
        frame_start_token_id=VOCAB + 4,
        frame_end_token_id=VOCAB + 5,
    )
    return tiny(Molmo2ForConditionalGeneration, config)


def _molmo2_before() -> PreTrainedModel:
    """Norms before attention and feed-forward."""
    return _molmo2(norm_after=False)


def _molmo2_after() -> PreTrainedModel:
    """Norms after attention and feed-forward, as on OLMo."""
    return _molmo2(norm_after=True)


def _cropped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two crops to an image, each 4 by 4 patches pooled to four placeholders."""
    pattern = [_LOW_START, *[_PATCH] * 4, _CROP_END, _HIGH_START, *[_PATCH] * 4, _CROP_END]
    batch = image_batch(rows, pattern, (2, 16, 3 * 4 * 4))
    batch["mm_token_type_ids"] = token_types(batch["input_ids"], _PATCH)
    if "pixel_values" in batch:
        count = len(batch["pixel_values"])
        batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
        pool = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
        batch["image_token_pooling"] = torch.cat([pool + 16 * crop for crop in range(2 * count)])
        batch["image_grids"] = torch.full((count, 4), 2)
        batch["image_num_crops"] = torch.full((count,), 2)
    return batch


FAMILIES: tuple[Family, ...] = (
    Family("chameleon", _chameleon_plain, _coded, "model.layers"),
    Family("chameleon", _chameleon_swin, _coded, "model.layers", "input_layernorm", key="chameleon-swin"),
    Family("llama4", _llama4_wide, _wrapped, "language_model.model.layers", notes=("beams",)),
    Family("llama4", _llama4_narrow, _wrapped, "language_model.model.layers", notes=("beams",), key="llama4-chunk"),
    Family("molmo2", _molmo2_before, _cropped, "model.language_model.layers", notes=("static",)),
    Family(
        "molmo2",
        _molmo2_after,
        _cropped,
        "model.language_model.layers",
        "input_layernorm",
        notes=("static",),
        key="molmo2-after",
    ),
)
