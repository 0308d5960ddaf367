"""Older and unusual designs: decoders with a generation loop of their own, images that no token shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    GitConfig,
    GitForCausalLM,
    IdeficsConfig,
    IdeficsForVisionText2Text,
    InstructBlipVideoConfig,
    InstructBlipVideoForConditionalGeneration,
    Kosmos2_5Config,
    Kosmos2_5ForConditionalGeneration,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    OPTConfig,
    PreTrainedModel,
)

from .base import (
    BOS,
    EOS,
    FIRST_WORD,
    IMAGE,
    PAD,
    TEXT,
    VISION,
    VOCAB,
    Family,
    Row,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    silence,
    stacked_pixels,
    text_ids,
    tiny,
)
from .placeholders import IMAGE_END, IMAGE_START, with_pixels

_QUERIES = 4
_FRAMES = 2

_BERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}

_KOSMOS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "embed_dim": 32,
    "layers": 4,
    "ffn_dim": 64,
    "attention_heads": 4,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}


def _git() -> PreTrainedModel:
    """A post-norm decoder that reads the image as a prefix of the text."""
    config = GitConfig(vision_config=dict(VISION), **_BERT)
    return tiny(GitForCausalLM, config, gain=0.8)


def _beside(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Prompts without any placeholder, beside one image each."""
    return with_pixels(rows, [])


def _blip() -> PreTrainedModel:
    """A post-norm decoder with cross-attention to the image in every layer."""
    config = BlipConfig(
        vision_config=dict(VISION),
        text_config={**_BERT, "sep_token_id": None, "projection_dim": 16},
        projection_dim=16,
        image_text_hidden_size=16,
        tie_word_embeddings=False,
    )

    def soften(model: Any) -> None:
        """Treat the head, which the whole model does not name as its own."""
        silence(model.text_decoder.get_output_embeddings(), range(FIRST_WORD), 3.0)

    return tiny(BlipForConditionalGeneration, config, gain=0.7, after=soften)


def _captions(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Prompts from start to end of the text, as ``generate`` sets the first token and drops the last one."""
    prompts = [[BOS, *text_ids(row.seed, row.words), EOS] for row in rows]
    batch: dict[str, Any] = dict(left_pad(prompts))
    pixels = stacked_pixels(rows, (3, 16, 16))
    if pixels is not None:
        batch["pixel_values"] = pixels
    return batch


def _idefics() -> PreTrainedModel:
    """A Llama with gated cross-attention blocks before each second layer."""
    config = IdeficsConfig(
        **{key: value for key, value in TEXT.items() if key != "num_key_value_heads"},
        vision_config={
            "embed_dim": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        alpha_initializer="ones",
        cross_layer_interval=2,
    )

    def narrow(model: Any) -> None:
        """Make the gates of the cross-attention narrow, or the image alone decides."""
        for block in model.model.gated_cross_attn_layers:
            block.alpha_cross_attn.fill_(0.2)
            block.alpha_dense.fill_(0.2)

    return tiny(IdeficsForVisionText2Text, config, gain=0.8, after=narrow)


def _attended(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One token to an image; each token after it may look at it. As of the processor, a blank image where none is."""
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, [IMAGE]) for row in rows]))
    count = max(1, *(row.images for row in rows)) if len(rows) > 1 else max(1, rows[0].images)
    ids = batch["input_ids"]
    pixels = torch.zeros(len(rows), count, 3, 16, 16)
    mask = torch.zeros(*ids.shape, count, dtype=torch.long)
    for number, row in enumerate(rows):
        for index, seed in enumerate(image_seeds([row])):
            pixels[number, index] = random_pixels(seed, (3, 16, 16))
        seen = (ids[number] == IMAGE).cumsum(-1)
        mask[number] = (seen[:, None] == torch.arange(1, count + 1)[None]).long()
    batch["pixel_values"] = pixels
    batch["image_attention_mask"] = mask
    return batch


def _kosmos2() -> PreTrainedModel:
    """A pre-norm decoder with a norm inside attention, which runs the generation loop."""
    config = Kosmos2Config(
        text_config=dict(_KOSMOS), vision_config=dict(VISION), latent_query_num=_QUERIES, tie_word_embeddings=False
    )
    return tiny(Kosmos2ForConditionalGeneration, config)


def _masked(rows: Sequence[Row]) -> dict[str, Any]:
    """Placeholders between start and end of image, and a mask of the placeholders."""
    image = [IMAGE_START] + [IMAGE] * _QUERIES + [IMAGE_END]
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image) for row in rows]))
    if image_seeds(rows):
        batch["image_embeds_position_mask"] = (batch["input_ids"] == IMAGE).long()
    return batch


def _masked_pixels(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """A mask of the placeholders, and pixels."""
    batch = _masked(rows)
    pixels = stacked_pixels(rows, (3, 16, 16))
    if pixels is not None:
        batch["pixel_values"] = pixels
    return batch


def _kosmos2_5() -> PreTrainedModel:
    """The tower of Pix2Struct on patches with coordinates, and a pre-norm decoder."""
    vision = {
        "hidden_size": 32,
        "patch_embed_hidden_size": 48,
        "intermediate_size": 48,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_num_patches": 16,
    }
    config = Kosmos2_5Config(
        text_config=dict(_KOSMOS), vision_config=vision, latent_query_num=_QUERIES, tie_word_embeddings=False
    )
    return tiny(Kosmos2_5ForConditionalGeneration, config)


def _masked_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """A mask of the placeholders, and four patches to an image, each with its row and column in front."""
    batch = _masked(rows)
    seeds = image_seeds(rows)
    if seeds:
        places = torch.tensor([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
        patches = [torch.cat([places, random_pixels(seed, (4, 48))], dim=-1) for seed in seeds]
        batch["flattened_patches"] = torch.stack(patches)
    return batch


def _instructblipvideo() -> PreTrainedModel:
    """A Q-Former on each frame of a video, and OPT, which runs the generation loop."""
    qformer = {**_BERT, "num_hidden_layers": 2, "num_attention_heads": 2, "cross_attention_frequency": 1}
    config = InstructBlipVideoConfig(
        vision_config=dict(VISION),
        qformer_config={key: value for key, value in qformer.items() if not key.startswith(("bos", "eos", "tie"))},
        text_config=OPTConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=128,
            word_embed_proj_dim=32,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            tie_word_embeddings=False,
        ),
        num_query_tokens=_QUERIES,
        video_token_index=IMAGE,
    )
    return tiny(InstructBlipVideoForConditionalGeneration, config)


def _frames(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """A video of two frames for each image of the row, and the instruction for the Q-Former, right-padded."""
    batch = with_pixels(rows, [IMAGE] * (_QUERIES * _FRAMES), (_FRAMES, 3, 16, 16))
    width = max(row.words for row in rows)
    ids = [text_ids(row.seed + 1, row.words) for row in rows]
    batch["qformer_input_ids"] = torch.tensor([words + [PAD] * (width - len(words)) for words in ids])
    batch["qformer_attention_mask"] = (batch["qformer_input_ids"] != PAD).long()
    return batch


FAMILIES: tuple[Family, ...] = (
    Family("git", _git, _beside, "git.encoder.layer", "attention.output.dense", notes=("static", "multi_image")),
    Family(
        "blip",
        _blip,
        _captions,
        "text_decoder.bert.encoder.layer",
        "attention.output.dense",
        "text_decoder",
        notes=("static", "text_only", "multi_image"),
    ),
    Family("idefics", _idefics, _attended, "model.layers"),
    Family(
        "kosmos-2",
        _kosmos2,
        _masked_pixels,
        "text_model.model.layers",
        loop="text_model",
        notes=("padding", "static", "text_only"),
    ),
    Family("kosmos-2.5", _kosmos2_5, _masked_patches, "text_model.model.layers", notes=("padding",)),
    Family(
        "instructblipvideo",
        _instructblipvideo,
        _frames,
        "language_model.model.decoder.layers",
        loop="language_model",
        notes=("text_only", "multi_image"),
    ),
)
