"""Decoders of their own kind: sandwich norms and windows (Gemma), image codes as words, layers that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import FIRST_WORD, IMAGE, IMAGE_END, IMAGE_START, TEXT, VOCAB, Family, Row, text, vision
from .batches import FOUR, FRAME, WRAPPED, by_prompt, image_batch, images, token_batch, token_types
from .llava import SIGLIP, UNTIED
from .qwen import TOWER
from .since import INSTALLED

_CODES = 16
_EMU3_CODES = 32
_TILES = 2
_CROSS = (1, 4)
_CONVOLUTIONS = (0, 2, 4)
_LOW_START, _HIGH_START, _CROP_END = VOCAB + 1, VOCAB + 2, VOCAB + 3

_WINDOW: dict[str, Any] = {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
_INDEX_MARKS: dict[str, Any] = {
    "boi_token_index": IMAGE_START, "eoi_token_index": IMAGE_END, "image_token_index": IMAGE,
}  # fmt: skip
_TYPED = images(WRAPPED, types="token_type_ids")


def _prefixed(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image; all of the prompt is prefix, whose tokens see each other both ways."""
    batch = image_batch(rows, FOUR)
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def _cropped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two crops to an image, each 4 by 4 patches pooled to four placeholders."""
    crop = [*[VOCAB] * 4, _CROP_END]
    batch = image_batch(rows, [_LOW_START, *crop, _HIGH_START, *crop], (2, 16, FRAME))
    batch["mm_token_type_ids"] = token_types(batch["input_ids"], VOCAB)
    if "pixel_values" in batch:
        count = len(batch["pixel_values"])
        batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
        pool = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
        batch["image_token_pooling"] = torch.cat([pool + 16 * crop for crop in range(2 * count)])
        batch["image_grids"] = torch.full((count, 4), 2)
        batch["image_num_crops"] = torch.full((count,), 2)
    return batch


def _cross_attended(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One placeholder to an image, and a mask that lets the tokens after it see the image, as the processor does."""
    batch = token_batch(rows, [VOCAB])
    most = max(row.images for row in rows)
    if not most:
        return batch
    length = batch["input_ids"].shape[1]
    ratio_ids = torch.zeros(len(rows), most, dtype=torch.long)
    ratio_mask = torch.zeros(len(rows), most, _TILES, dtype=torch.long)
    ratio_mask[:, :, 0] = 1
    cross = torch.zeros(len(rows), length, most, _TILES, dtype=torch.long)
    for index, row in enumerate(rows):
        first = int((batch["input_ids"][index] == VOCAB).nonzero()[0]) if row.images else length
        ratio_ids[index, : row.images] = 2
        ratio_mask[index, : row.images] = 1
        cross[index, first:, : row.images] = 1
    return {
        **batch,
        "pixel_values": by_prompt(rows, most, (_TILES, 3, 16, 16)),
        "aspect_ratio_ids": ratio_ids,
        "aspect_ratio_mask": ratio_mask,
        "cross_attention_mask": cross,
    }


def _open_gates(model: Any) -> None:
    """The gates of cross-attention are zero at the start, so that images would not matter."""
    for name, parameter in model.named_parameters():
        if name.endswith("gate"):
            parameter.fill_(0.2)


def _naflex(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image a grid of 4 by 4 flattened patches, four placeholders after shuffling."""
    batch = image_batch(rows, FOUR, (16, FRAME))
    if "pixel_values" in batch:
        count = len(batch["pixel_values"])
        batch["spatial_shapes"] = torch.full((count, 2), 4)
        batch["pixel_attention_mask"] = torch.ones(count, 16, dtype=torch.long)
    return batch


def _gemma3(window: int) -> dict[str, Any]:
    """SigLIP with pooling, and a decoder in which every third layer attends beyond the window."""
    layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return {
        "vision_config": vision("siglip_vision_model", patch_size=4),
        "text_config": text(
            "gemma3_text", num_hidden_layers=6, layer_types=layers, **{**_WINDOW, "sliding_window": window}
        ),
        "mm_tokens_per_image": 4,
        **_INDEX_MARKS,
        **UNTIED,
    }


def _paligemma(decoder: dict[str, Any]) -> dict[str, Any]:
    """SigLIP and one of the first two Gemmas."""
    sizes = {"vocab_size": VOCAB, "projection_dim": 32, "hidden_size": 32}
    return {"vision_config": SIGLIP, "text_config": decoder, "image_token_index": IMAGE, **sizes, **UNTIED}


def _chameleon(swin_norm: bool) -> dict[str, Any]:
    """Images quantised to codes that are words of the vocabulary, its last sixteen here."""
    letters = [f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z" for code in range(_CODES)]
    return {
        **TEXT,
        "swin_norm": swin_norm,
        "vq_config": {
            "embed_dim": 32,
            "num_embeddings": _CODES,
            "latent_channels": 32,
            "resolution": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
        },
        "vocabulary_map": {"<image>": IMAGE, **{letter: VOCAB - _CODES + i for i, letter in enumerate(letters)}},
    }


def _llama4(chunk: int) -> dict[str, Any]:
    """Experts in every second layer, chunked attention with rotary positions but for the last layer."""
    return {
        "vision_config": vision(
            intermediate_size=128, patch_size=4, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32
        ),
        "text_config": text(
            intermediate_size_mlp=64,
            head_dim=8,
            num_local_experts=4,
            interleave_moe_layer_step=2,
            attention_chunk_size=chunk,
        ),
        **_INDEX_MARKS,
    }


def _molmo2(norm_after: bool) -> dict[str, Any]:
    """Features added onto the placeholders' embeddings; special tokens beyond the head's vocabulary."""
    tower = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    tokens = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {
        "vision_config": vision(**tower, image_size=[16, 16], patch_size=4),
        "adapter_config": {**tower, "vision_feature_layer": [-1, 0], "intermediate_size": 48, "text_hidden_size": 32},
        "text_config": text(without=tokens, head_dim=8, additional_vocab_size=8, norm_after=norm_after),
        "image_patch_id": VOCAB,
        "low_res_image_start_token_id": _LOW_START,
        "image_start_token_id": _HIGH_START,
        "image_end_token_id": _CROP_END,
        "frame_start_token_id": VOCAB + 4,
        "frame_end_token_id": VOCAB + 5,
    }


FAMILIES: tuple[Family, ...] = (
    # A window that is wider than any test's sequence, and one that every test's sequence outgrows.
    Family("gemma3", _gemma3(256), _TYPED, update="post_attention_layernorm"),
    Family("gemma3", _gemma3(8), _TYPED, update="post_attention_layernorm", key="gemma3-window"),
    # Gemma3 under the configuration of its classifier.
    Family(
        "shieldgemma2",
        {
            "vision_config": SIGLIP,
            "text_config": text("gemma3_text", num_hidden_layers=6, **_WINDOW),
            "mm_tokens_per_image": 4,
            **_INDEX_MARKS,
            **UNTIED,
        },
        _TYPED,
        update="post_attention_layernorm",
    ),
    Family("paligemma", _paligemma(text("gemma", head_dim=8)), _prefixed),
    # PaliGemma 2 on Gemma 2, with norms around attention and a window in every second layer.
    Family(
        "paligemma",
        _paligemma(text("gemma2", **{**_WINDOW, "sliding_window": 256})),
        _prefixed,
        update="post_attention_layernorm",
        notes=("static",),
        key="paligemma-2",
    ),
    # The 7B model's layers: norms before attention and feed-forward. No image code is among the words.
    Family("chameleon", _chameleon(False), images(WRAPPED, high=VOCAB - _CODES), "model.layers", gain=2.5),
    # The 30B model's layers: the norm named for the input comes after attention.
    Family(
        "chameleon",
        _chameleon(True),
        images(WRAPPED, high=VOCAB - _CODES),
        "model.layers",
        "input_layernorm",
        key="chameleon-swin",
        embed=2.0,
    ),
    # A Llama on discrete image tokens of a VQ-VAE; the vocabulary holds them above the words. Two rows of two codes
    # and a row end to an image.
    Family(
        "emu3",
        {
            "vq_config": {
                "codebook_size": _EMU3_CODES,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "hidden_size": 32,
                "attn_resolutions": [],
                "temporal_downsample_factor": 1,
            },
            "text_config": text(vocab_size=VOCAB + _EMU3_CODES),
            "vocabulary_map": {
                "<image>": IMAGE,
                "<|extra_200|>": 7,
                **{f"<|visual token {code:06d}|>": VOCAB + code for code in range(_EMU3_CODES)},
            },
        },
        images([IMAGE_START, *[IMAGE] * 6, IMAGE_END], (3, 4, 4), sizes=(4, 4)),
        "model.text_model.layers",
        special=[*range(FIRST_WORD), *range(VOCAB, VOCAB + _EMU3_CODES)],
    ),
    # Chunks that are longer than any test's sequence, and chunks that every test's sequence outgrows.
    Family("llama4", _llama4(256), images(WRAPPED), "language_model.model.layers", notes=("beams",)),
    Family("llama4", _llama4(8), images(WRAPPED), "language_model.model.layers", notes=("beams",), key="llama4-chunk"),
    # Norms before attention and feed-forward, and, as on OLMo, after them.
    Family("molmo2", _molmo2(False), _cropped, notes=("static",)),
    Family("molmo2", _molmo2(True), _cropped, update="input_layernorm", notes=("static",), key="molmo2-after"),
    # Llama 3.2 Vision; as in the original the placeholder's id is just beyond the head's vocabulary.
    Family(
        "mllama",
        {
            "vision_config": {
                **vision(without=("num_attention_heads",), num_hidden_layers=3),
                "num_global_layers": 1,
                "attention_heads": 2,
                "max_num_tiles": _TILES,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
                "intermediate_layers_indices": [0, 2],
                "vision_output_dim": 32 * 3,
            },
            "text_config": text(num_hidden_layers=6, cross_attention_layers=list(_CROSS)),
            "image_token_index": VOCAB,
        },
        _cross_attended,
        no_attention_layers=_CROSS,
        # Stock transformers before 5.18 cannot decode it with a static cache.
        notes=("lookup",) if INSTALLED >= (5, 18) else ("lookup", "static"),
        gain=1.0,
        embed=2.0,
        after=_open_gates,
    ),
    # SigLIP 2 and a decoder in which short convolutions and attention take turns.
    Family(
        "lfm2_vl",
        {
            "vision_config": {"model_type": "siglip2_vision_model", **TOWER, "num_patches": 16},
            "text_config": text(
                "lfm2",
                num_hidden_layers=6,
                layer_types=["conv", "full_attention"] * 3,
                block_auto_adjust_ff_dim=False,
            ),
            "image_token_id": IMAGE,
            "projector_hidden_size": 48,
            "downsample_factor": 2,
            **UNTIED,
        },
        _naflex,
        no_attention_layers=_CONVOLUTIONS,
    ),
)
