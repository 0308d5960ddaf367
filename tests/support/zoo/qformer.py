"""Connectors that shorten the image, and older designs: Q-Formers, perceivers, decoders with a loop of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import BOS, EOS, IMAGE, PAD, VOCAB, Family, Row, silence, text, vision
from .batches import (
    FOUR,
    WRAPPED,
    Inputs,
    by_prompt,
    image_seeds,
    images,
    left_pad,
    random_pixels,
    stacked_pixels,
    text_ids,
    token_batch,
    with_instruction,
)
from .llava import LLAMA, MISTRAL, UNTIED

_QUERIES = 4
_FRAMES = 2
_SPECIAL: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_QFORMER: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "encoder_hidden_size": 32,
    "cross_attention_frequency": 1,
}
_BERT: dict[str, Any] = text(without=("num_key_value_heads",), max_position_embeddings=128)
_OPT: dict[str, Any] = {
    **text("opt", without=("num_key_value_heads", "intermediate_size")),
    "ffn_dim": 64,
}
_KOSMOS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "embed_dim": 32,
    "layers": 4,
    "ffn_dim": 64,
    "attention_heads": 4,
    **_SPECIAL,
    **UNTIED,
}
_IDEFICS3: dict[str, Any] = {
    "vision_config": vision(patch_size=4), "text_config": LLAMA, "image_token_id": IMAGE, "pad_token_id": PAD,
}  # fmt: skip


def _padded_by_prompt(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image; the images of a prompt padded to the batch's largest number with blank ones."""
    batch = token_batch(rows, FOUR)
    most = max(row.images for row in rows)
    if most:
        batch["pixel_values"] = by_prompt(rows, most)
        batch["pixel_attention_mask"] = torch.ones(len(rows), most, 16, 16, dtype=torch.bool)
    return batch


def _captions(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Prompts from start to end of the text, as ``generate`` sets the first token and drops the last one."""
    batch: dict[str, Any] = dict(left_pad([[BOS, *text_ids(row.seed, row.words), EOS] for row in rows]))
    pixels = stacked_pixels(rows, (3, 16, 16))
    if pixels is not None:
        batch["pixel_values"] = pixels
    return batch


def _attended(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One token to an image; each token after it may look at it. As of the processor, a blank image where none is."""
    batch = token_batch(rows, [IMAGE])
    count = max(1, *(row.images for row in rows)) if len(rows) > 1 else max(1, rows[0].images)
    seen = (batch["input_ids"] == IMAGE).cumsum(-1)
    batch["pixel_values"] = by_prompt(rows, count)
    batch["image_attention_mask"] = (seen[..., None] == torch.arange(1, count + 1)).long()
    return batch


def _masked(inputs: Inputs) -> Inputs:
    """Inputs with a mask of the placeholders."""

    def masked(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = inputs(model, rows)
        if image_seeds(rows):
            batch["image_embeds_position_mask"] = (batch["input_ids"] == IMAGE).long()
        return batch

    return masked


def _flattened_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four patches to an image, each with its row and column in front."""
    batch = token_batch(rows, WRAPPED)
    seeds = image_seeds(rows)
    if seeds:
        places = torch.tensor([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
        patches = [torch.cat([places, random_pixels(seed, (4, 48))], dim=-1) for seed in seeds]
        batch["flattened_patches"] = torch.stack(patches)
    return batch


def _silence_decoder(model: Any) -> None:
    """Treat the head, which the whole model does not name as its own."""
    silence(model.text_decoder.get_output_embeddings())


def _narrow_gates(model: Any) -> None:
    """Make the gates of the cross-attention narrow, or the image alone decides."""
    for block in model.model.gated_cross_attn_layers:
        block.alpha_cross_attn.fill_(0.2)
        block.alpha_dense.fill_(0.2)


FAMILIES: tuple[Family, ...] = (
    # A Q-Former that reads the instruction, and the Llama architecture of Vicuna.
    Family(
        "instructblip",
        {
            "vision_config": vision(),
            "qformer_config": _QFORMER,
            "text_config": LLAMA,
            "num_query_tokens": _QUERIES,
            "image_token_index": IMAGE,
        },
        with_instruction(images(), high=100),
        "language_model.model.layers",
        loop="language_model",
        notes=("text_only", "multi_image"),
    ),
    # OPT as the decoder: learned positions, and layers of its own naming.
    Family(
        "blip-2",
        {
            "vision_config": vision(),
            "qformer_config": _QFORMER,
            "text_config": _OPT,
            "num_query_tokens": _QUERIES,
            "image_text_hidden_size": 16,
            "image_token_index": IMAGE,
        },
        images(),
        "language_model.model.decoder.layers",
        loop="language_model",
        notes=("text_only",),
        embed=2.0,
    ),
    # A Q-Former on each frame of a video, and OPT, which runs the generation loop.
    Family(
        "instructblipvideo",
        {
            "vision_config": vision(),
            "qformer_config": {
                **_QFORMER,
                "vocab_size": VOCAB,
                "intermediate_size": 64,
                "max_position_embeddings": 128,
                "pad_token_id": PAD,
            },
            "text_config": {**_OPT, "max_position_embeddings": 128, "word_embed_proj_dim": 32},
            "num_query_tokens": _QUERIES,
            "video_token_index": IMAGE,
        },
        with_instruction(images([IMAGE] * (_QUERIES * _FRAMES), (_FRAMES, 3, 16, 16)), high=VOCAB),
        "language_model.model.decoder.layers",
        loop="language_model",
        notes=("text_only", "multi_image"),
    ),
    # SigLIP, a perceiver resampler and Mistral.
    Family(
        "idefics2",
        {
            "vision_config": vision(),
            "perceiver_config": {
                "hidden_size": 32,
                "resampler_n_latents": 4,
                "resampler_depth": 2,
                "resampler_n_heads": 2,
                "resampler_head_dim": 16,
                "num_key_value_heads": 1,
            },
            "text_config": MISTRAL,
            "image_token_id": IMAGE,
        },
        _padded_by_prompt,
        "model.text_model.layers",
    ),
    # SigLIP with pixel shuffle, and Llama.
    Family("idefics3", _IDEFICS3, _padded_by_prompt, "model.text_model.layers"),
    # As Idefics3, under a name of its own.
    Family("smolvlm", _IDEFICS3, _padded_by_prompt, "model.text_model.layers"),
    # A Llama with gated cross-attention blocks before each second layer.
    Family(
        "idefics",
        {
            **text(without=("num_key_value_heads",)),
            "vision_config": vision(without=("hidden_size",), embed_dim=32),
            "alpha_initializer": "ones",
            "cross_layer_interval": 2,
        },
        _attended,
        "model.layers",
        gain=0.8,
        after=_narrow_gates,
    ),
    # A post-norm decoder that reads the image, which no token shows, as a prefix of the text.
    Family(
        "git",
        {"vision_config": vision(), **_BERT},
        images([]),
        "git.encoder.layer",
        "attention.output.dense",
        notes=("static", "multi_image"),
        gain=0.8,
    ),
    # A post-norm decoder with cross-attention to the image in every layer.
    Family(
        "blip",
        {
            "vision_config": vision(),
            "text_config": {**_BERT, "sep_token_id": None, "projection_dim": 16},
            "projection_dim": 16,
            "image_text_hidden_size": 16,
            **UNTIED,
        },
        _captions,
        "text_decoder.bert.encoder.layer",
        "attention.output.dense",
        "text_decoder",
        notes=("static", "text_only", "multi_image"),
        gain=0.7,
        after=_silence_decoder,
    ),
    # A pre-norm decoder with a norm inside attention, which runs the generation loop.
    Family(
        "kosmos-2",
        {"text_config": _KOSMOS, "vision_config": vision(), "latent_query_num": _QUERIES, **UNTIED},
        _masked(images(WRAPPED)),
        "text_model.model.layers",
        loop="text_model",
        notes=("padding", "static", "text_only"),
    ),
    # The tower of Pix2Struct on patches with coordinates, and a pre-norm decoder.
    Family(
        "kosmos-2.5",
        {
            "text_config": _KOSMOS,
            "vision_config": {
                **vision(without=("image_size", "patch_size")),
                "patch_embed_hidden_size": 48,
                "head_dim": 16,
                "max_num_patches": 16,
            },
            "latent_query_num": _QUERIES,
            **UNTIED,
        },
        _masked(_flattened_patches),
        "text_model.model.layers",
        notes=("padding",),
    ),
)
