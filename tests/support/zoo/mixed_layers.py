"""Decoders whose layers are not all alike: cross-attention or convolution in place of self-attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Lfm2Config,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    MllamaConfig,
    MllamaForConditionalGeneration,
    PreTrainedModel,
    Siglip2VisionConfig,
)

from .base import (
    IMAGE,
    TEXT,
    VOCAB,
    Family,
    Row,
    image_batch,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    tiny,
)

_TILES = 2
_CROSS = (1, 4)
_CONVOLUTIONS = (0, 2, 4)


def _mllama() -> PreTrainedModel:
    """Llama 3.2 Vision; as in the original the placeholder's id is just beyond the head's vocabulary."""
    config = MllamaConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
            "max_num_tiles": _TILES,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            "intermediate_layers_indices": [0, 2],
            "vision_output_dim": 32 * 3,
        },
        text_config={**TEXT, "num_hidden_layers": 6, "cross_attention_layers": list(_CROSS)},
        image_token_index=VOCAB,
    )
    return tiny(MllamaForConditionalGeneration, config, gain=1.0, embed=2.0, after=_open_gates)


def _open_gates(model: MllamaForConditionalGeneration) -> None:
    """The gates of cross-attention are zero at the start, so that images would not matter."""
    for name, parameter in model.named_parameters():
        if name.endswith("gate"):
            parameter.fill_(0.2)


def _cross_attended(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One placeholder to an image, and a mask that lets the tokens after it see the image, as the processor does."""
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, [VOCAB]) for row in rows]))
    most = max(row.images for row in rows)
    if not most:
        return batch
    length = batch["input_ids"].shape[1]
    pixels = torch.zeros(len(rows), most, _TILES, 3, 16, 16)
    ratio_ids = torch.zeros(len(rows), most, dtype=torch.long)
    ratio_mask = torch.zeros(len(rows), most, _TILES, dtype=torch.long)
    ratio_mask[:, :, 0] = 1
    cross = torch.zeros(len(rows), length, most, _TILES, dtype=torch.long)
    for index, row in enumerate(rows):
        first = int((batch["input_ids"][index] == VOCAB).nonzero()[0]) if row.images else length
        for place, seed in enumerate(image_seeds([row])):
            pixels[index, place] = random_pixels(seed, (_TILES, 3, 16, 16))
            ratio_ids[index, place] = 2
            ratio_mask[index, place] = 1
            cross[index, first:, place] = 1
    return {
        **batch,
        "pixel_values": pixels,
        "aspect_ratio_ids": ratio_ids,
        "aspect_ratio_mask": ratio_mask,
        "cross_attention_mask": cross,
    }


def _lfm2_vl() -> PreTrainedModel:
    """SigLIP 2 and a decoder in which short convolutions and attention take turns."""
    kinds = ["conv" if index in _CONVOLUTIONS else "full_attention" for index in range(6)]
    config = Lfm2VlConfig(
        vision_config=Siglip2VisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            patch_size=4,
            num_patches=16,
        ),
        text_config=Lfm2Config(**{**TEXT, "num_hidden_layers": 6}, layer_types=kinds, block_auto_adjust_ff_dim=False),
        image_token_id=IMAGE,
        projector_hidden_size=48,
        downsample_factor=2,
        tie_word_embeddings=False,
    )
    return tiny(Lfm2VlForConditionalGeneration, config)


def _naflex(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Each image a grid of 4 by 4 flattened patches, four placeholders after shuffling."""
    batch = image_batch(rows, [IMAGE] * 4, (16, 3 * 4 * 4))
    if "pixel_values" in batch:
        count = len(batch["pixel_values"])
        batch["spatial_shapes"] = torch.full((count, 2), 4)
        batch["pixel_attention_mask"] = torch.ones(count, 16, dtype=torch.long)
    return batch


FAMILIES: tuple[Family, ...] = (
    Family(
        "mllama",
        _mllama,
        _cross_attended,
        "model.language_model.layers",
        no_attention_layers=_CROSS,
        notes=("lookup",),
    ),
    Family("lfm2_vl", _lfm2_vl, _naflex, "model.language_model.layers", no_attention_layers=_CONVOLUTIONS),
)
