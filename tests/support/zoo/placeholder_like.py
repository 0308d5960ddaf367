"""Further models that put image features in place of placeholders, each with a tower or decoder of its own kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    Cohere2Config,
    FastVlmConfig,
    FastVlmForConditionalGeneration,
    FuyuConfig,
    FuyuForCausalLM,
    InternVLConfig,
    InternVLForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    LlamaConfig,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    Ovis2Config,
    Ovis2ForConditionalGeneration,
    PersimmonConfig,
    PixtralVisionConfig,
    PreTrainedModel,
    Qwen2Config,
    ResNetConfig,
    SiglipVisionConfig,
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
    tiny,
)

_FINE: dict[str, Any] = {**VISION, "patch_size": 4}
_START = 4
_END = 5
_INDICATORS = [5, 6, 7, 8, 9]


def _four(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image."""
    return image_batch(rows, [IMAGE] * 4)


def _wrapped(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image, between a start and an end token."""
    return image_batch(rows, [_START, *[IMAGE] * 4, _END])


def _internvl() -> PreTrainedModel:
    """A tower with layer scale and pixel shuffle, and Qwen2."""
    config = InternVLConfig(
        vision_config={**_FINE, "image_size": [16, 16], "patch_size": [4, 4]},
        text_config=Qwen2Config(**TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return tiny(InternVLForConditionalGeneration, config)


def _mistral3() -> PreTrainedModel:
    """Pixtral's tower with merged patches, and Mistral."""
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(**_FINE),
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_index=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(Mistral3ForConditionalGeneration, config, gain=2.5)


def _merged(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two rows of two placeholders, each closed by a token that stays text, and the sizes of the images."""
    batch = image_batch(rows, [IMAGE, IMAGE, _START, IMAGE, IMAGE, _END])
    if "pixel_values" in batch:
        batch["image_sizes"] = torch.tensor([[16, 16]] * len(batch["pixel_values"]))
    return batch


def _aya_vision() -> PreTrainedModel:
    """SigLIP, and Cohere2, whose layers run attention and feed-forward side by side on one residual."""
    config = AyaVisionConfig(
        vision_config=SiglipVisionConfig(**_FINE, vision_use_head=False),
        text_config=Cohere2Config(**TEXT, sliding_window=256, logit_scale=1.0),
        image_token_index=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(AyaVisionForConditionalGeneration, config)


def _janus() -> PreTrainedModel:
    """A model that can also draw: SigLIP for seeing, a quantiser for drawing, and Llama."""
    config = JanusConfig(
        vision_config={**VISION, "projection_dim": 32, "mlp_ratio": 2.0, "num_image_tokens": 4},
        vq_config={
            "embed_dim": 8,
            "num_embeddings": 16,
            "latent_channels": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "projection_dim": 32,
            "image_token_embed_dim": 32,
        },
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return tiny(JanusForConditionalGeneration, config)


def _ovis2() -> PreTrainedModel:
    """A tower that says how much of each visual word a patch is, and Qwen2."""
    config = Ovis2Config(
        vision_config={**VISION, "vocab_size": 40, "hidden_stride": 1},
        text_config=Qwen2Config(**TEXT),
        image_token_id=IMAGE,
        visual_indicator_token_ids=_INDICATORS,
        vocab_size=VOCAB,
        hidden_size=32,
        tie_word_embeddings=False,
    )
    return tiny(Ovis2ForConditionalGeneration, config)


def _indicated(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Four placeholders to an image, between two of the visual indicator tokens."""
    return image_batch(rows, [_INDICATORS[0], *[IMAGE] * 4, _INDICATORS[1]])


def _fast_vlm() -> PreTrainedModel:
    """A convolutional tower (a ResNet here; FastViT is timm's), and Qwen2."""
    config = FastVlmConfig(
        vision_config=ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", hidden_size=32
        ),
        text_config=Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
    )
    return tiny(FastVlmForConditionalGeneration, config)


def _fuyu() -> PreTrainedModel:
    """No vision tower at all: patches go through one linear map into Persimmon."""
    config = FuyuConfig(
        text_config=PersimmonConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=512,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
        ),
        image_size=8,
        patch_size=4,
        image_token_id=IMAGE,
    )
    return tiny(FuyuForCausalLM, config, gain=2.0)


def _raw_patches(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
    """Two rows of two flattened patches, each row closed by a token that stays text."""
    return image_batch(rows, [IMAGE, IMAGE, _START, IMAGE, IMAGE, _START], (4, 3 * 4 * 4))


FAMILIES: tuple[Family, ...] = (
    Family("internvl", _internvl, _wrapped, "model.language_model.layers"),
    Family("mistral3", _mistral3, _merged, "model.language_model.layers"),
    Family("aya_vision", _aya_vision, _four, "model.language_model.layers"),
    Family("janus", _janus, _wrapped, "model.language_model.layers"),
    Family("ovis2", _ovis2, _indicated, "model.language_model.layers"),
    Family("fast_vlm", _fast_vlm, _four, "model.language_model.layers"),
    Family("fuyu", _fuyu, _raw_patches, "model.language_model.layers", notes=("beams",)),
)
