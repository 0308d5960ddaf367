"""The BLIP-2 line: a Q-Former between vision tower and decoder, and a decoder that runs the generation loop itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    LlamaConfig,
    OPTConfig,
    PreTrainedModel,
)

from .base import (
    BOS,
    EOS,
    IMAGE,
    PAD,
    TEXT,
    VISION,
    VOCAB,
    Family,
    Row,
    image_batch,
    text_ids,
    tiny,
)

_QUERIES = 4
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


def _queries(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """One image to a prompt, as many placeholders as there are query tokens."""
    return image_batch(rows, [IMAGE] * _QUERIES)


def _instruction(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """As ``_queries``, with an instruction for the Q-Former, right-padded as its tokenizer does."""
    batch = _queries(model, rows)
    width = max(row.words for row in rows)
    ids = [text_ids(row.seed + 1, row.words, 10, 100) for row in rows]
    batch["qformer_input_ids"] = torch.tensor([words + [0] * (width - len(words)) for words in ids])
    batch["qformer_attention_mask"] = torch.tensor([[1] * len(words) + [0] * (width - len(words)) for words in ids])
    return batch


def _instructblip() -> PreTrainedModel:
    """A Q-Former that reads the instruction, and the Llama architecture of Vicuna."""
    config = InstructBlipConfig(
        vision_config=dict(VISION),
        qformer_config=dict(_QFORMER),
        text_config=LlamaConfig(**TEXT),
        num_query_tokens=_QUERIES,
        image_token_index=IMAGE,
    )
    return tiny(InstructBlipForConditionalGeneration, config)


def _blip2() -> PreTrainedModel:
    """OPT as the decoder: learned positions, and layers of its own naming."""
    config = Blip2Config(
        vision_config=dict(VISION),
        qformer_config=dict(_QFORMER),
        text_config=OPTConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=4,
            ffn_dim=64,
            num_attention_heads=4,
            max_position_embeddings=512,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            tie_word_embeddings=False,
        ),
        num_query_tokens=_QUERIES,
        image_text_hidden_size=16,
        image_token_index=IMAGE,
    )
    return tiny(Blip2ForConditionalGeneration, config, embed=2.0)


FAMILIES: tuple[Family, ...] = (
    Family(
        "instructblip",
        _instructblip,
        _instruction,
        "language_model.model.layers",
        loop="language_model",
        notes=("text_only", "multi_image"),
    ),
    Family(
        "blip-2",
        _blip2,
        _queries,
        "language_model.model.decoder.layers",
        loop="language_model",
        notes=("text_only",),
    ),
)
