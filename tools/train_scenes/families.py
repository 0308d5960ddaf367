"""The embedded models: small LLaVA and Idefics2 models of the real classes, and what training needs to know of each.

The two fuse the image differently, as in the paper: LLaVA gives the decoder one token per patch; Idefics2 lets the
latents of a perceiver resampler read the patches, and gives the decoder the latents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    Idefics2Config,
    Idefics2ForConditionalGeneration,
    Idefics2Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil

from rudder_hf.scenes.images import CELL, GRID, SIDE

from .tokenizer import CHAT_TEMPLATE, SPECIAL, build_tokenizer, token_id

IMAGE_TOKENS = GRID * GRID
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
LAYERS = 12
WIDTH = 128
HEADS = 4
COPY = 0.1  # how much attention copies at the start of training


class Family(ABC):
    """One architecture: how it is built, where its parts are, and how it sees images."""

    name: str
    tower_path: str
    connector_path: str
    decoder_path: str
    before: tuple[str, ...] = ()  # tokens around the image's
    after: tuple[str, ...] = ()
    vision_steps: int = 700  # of the first stage of training
    steps: int = 900  # of the second
    lens_from: int | None = None  # see `Recipe`
    lens_steps: int = 250
    connector_rate: float = 1.0  # of the connector in the second stage, as a share of the decoder's

    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer."""

    @abstractmethod
    def processor(self) -> ProcessorMixin:
        """Tokenizer, image processor (Pillow, no torchvision) and chat template."""

    @abstractmethod
    def untrained(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """The model with random weights from torch's generator."""

    def tower(self, model: PreTrainedModel) -> nn.Module:
        """The vision tower."""
        part: nn.Module = model.get_submodule(self.tower_path)
        return part

    def connector(self, model: PreTrainedModel) -> nn.Module:
        """What turns patch features into image tokens."""
        part: nn.Module = model.get_submodule(self.connector_path)
        return part

    def decoder(self, model: PreTrainedModel) -> nn.Module:
        """The text decoder, with `layers` and `embed_tokens`."""
        part: nn.Module = model.get_submodule(self.decoder_path)
        return part

    @abstractmethod
    def features(self, model: PreTrainedModel, pixels: Tensor) -> Tensor:
        """Patch features of normalised images (rows, 3, side, side), (rows, patches, width)."""

    @abstractmethod
    def project(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        """Image tokens in the decoder's embedding space, (rows, image tokens, width)."""

    @abstractmethod
    def inputs(self, pixels: Tensor) -> dict[str, Tensor]:
        """What the model takes beside the token ids."""

    def model(self, seed: int, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """The model with seeded weights, ready for training."""
        torch.manual_seed(seed)
        model = self.untrained(tokenizer)
        model.set_attn_implementation("eager")  # in bfloat16 its backward takes a third of the time of the fused one's
        _start_by_copying(self.decoder(model))
        for name in ("eos", "pad", "bos"):
            setattr(model.generation_config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
        return model


def _text_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH + WIDTH // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 512,
        "initializer_range": 0.08,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _vision_settings() -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 3 * WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "image_size": SIDE,
        "patch_size": CELL,
    }


@torch.no_grad()
def _start_by_copying(decoder: Any) -> None:
    """Start the decoder as a clean residual stream in which words can find and copy the patches that show them.

    Half of the heads start with equal queries and keys: they look for tokens like their own. Attention starts by
    copying a little of what it looks at (orthogonal values, their transpose as output), the feed-forward blocks add
    nothing yet. From a plain random start, training stays at the language priors for several times as long.
    """
    for layer in decoder.layers:
        attention = layer.self_attn
        half = attention.q_proj.weight.shape[0] // 2
        attention.k_proj.weight[:half] = attention.q_proj.weight[:half]
        nn.init.orthogonal_(attention.v_proj.weight)
        attention.o_proj.weight.copy_(COPY * attention.v_proj.weight.T)
        layer.mlp.down_proj.weight.zero_()


class Llava(Family):
    """CLIP tower, a two-layer projector, Llama decoder: one image token per patch."""

    name = "llava"
    tower_path = "model.vision_tower"
    connector_path = "model.multi_modal_projector"
    decoder_path = "model.language_model"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer."""
        return build_tokenizer()

    def processor(self) -> LlavaProcessor:
        """Tokenizer, image processor and chat template."""
        images = CLIPImageProcessorPil(
            size={"height": SIDE, "width": SIDE}, do_center_crop=False, do_convert_rgb=True, resample=3
        )
        return LlavaProcessor(  # type: ignore[no-untyped-call]
            image_processor=images,
            tokenizer=self.tokenizer(),
            patch_size=CELL,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=CHAT_TEMPLATE,
        )

    def untrained(self, tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
        """The model with random weights."""
        config = LlavaConfig(
            vision_config=CLIPVisionConfig(**_vision_settings(), projection_dim=WIDTH),
            text_config=LlamaConfig(**_text_settings(tokenizer)),
            image_token_index=token_id(tokenizer, "<image>"),
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",
            image_seq_length=IMAGE_TOKENS,
            tie_word_embeddings=True,
        )
        return LlavaForConditionalGeneration(config)

    def features(self, model: PreTrainedModel, pixels: Tensor) -> Tensor:
        """Patch features, (rows, patches, width)."""
        return self.tower(model)(pixel_values=pixels).last_hidden_state[:, 1:]  # type: ignore[no-any-return]

    def project(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        """Image tokens, (rows, image tokens, width)."""
        return self.connector(model)(features)  # type: ignore[no-any-return]

    def inputs(self, pixels: Tensor) -> dict[str, Tensor]:
        """What the model takes beside the token ids."""
        return {"pixel_values": pixels}


class Idefics2(Family):
    """SigLIP-like tower, a perceiver resampler, Mistral decoder: latents read the image.

    Training asks latent number n for what patch number n shows. The resampler takes longer to learn that than a
    projector does, and at the full rate of the second stage it would forget it.
    """

    name = "idefics2"
    tower_path = "model.vision_model"
    connector_path = "model.connector"
    decoder_path = "model.text_model"
    before = ("<fake_token_around_image>",)
    after = ("<fake_token_around_image>",)
    vision_steps = 1100
    steps = 1400
    lens_from = 1100
    lens_steps = 0
    connector_rate = 0.1

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer."""
        special = (*SPECIAL, "<fake_token_around_image>", "<end_of_utterance>")
        return build_tokenizer(special, image_boundary_token="<fake_token_around_image>")

    def processor(self) -> Idefics2Processor:
        """Tokenizer, image processor and chat template."""
        images = Idefics2ImageProcessorPil(
            size={"shortest_edge": SIDE, "longest_edge": SIDE}, image_mean=CLIP_MEAN, image_std=CLIP_STD, resample=3
        )
        return Idefics2Processor(  # type: ignore[no-untyped-call]
            image_processor=images,
            tokenizer=self.tokenizer(),
            image_seq_len=IMAGE_TOKENS,
            chat_template=CHAT_TEMPLATE,
        )

    def untrained(self, tokenizer: PreTrainedTokenizerFast) -> Idefics2ForConditionalGeneration:
        """The model with random weights."""
        config = Idefics2Config(
            vision_config=_vision_settings(),
            perceiver_config={
                "hidden_size": WIDTH,
                "resampler_n_latents": IMAGE_TOKENS,
                "resampler_depth": 2,
                "resampler_n_heads": HEADS,
                "resampler_head_dim": WIDTH // HEADS,
                "num_key_value_heads": HEADS,
            },
            text_config=MistralConfig(**_text_settings(tokenizer), sliding_window=None),
            image_token_id=token_id(tokenizer, "<image>"),
            tie_word_embeddings=True,
        )
        model = Idefics2ForConditionalGeneration(config)
        self._look_at_patches(model)
        return model

    @torch.no_grad()
    def _look_at_patches(self, model: Idefics2ForConditionalGeneration) -> None:
        """Let latent number n start by reading patch number n: it looks for what sets the patch's place apart.

        Idefics2's latents start equal, and gradients could hardly tell them apart within a short training. What is
        read starts larger than the latent itself, for the same reason.
        """
        nn.init.normal_(model.model.vision_model.embeddings.position_embedding.weight)
        resampler = model.model.connector.perceiver_resampler
        patches = self.features(model, torch.randn(16, 3, SIDE, SIDE))
        places = model.model.connector.modality_projection(patches).mean(0)
        places = places - places.mean(0)
        resampler.latents.copy_(places / places.pow(2).mean(-1, keepdim=True).sqrt())
        for layer in resampler.layers:
            attention = layer.self_attn
            nn.init.orthogonal_(attention.q_proj.weight, gain=2.0)
            attention.k_proj.weight.copy_(attention.q_proj.weight / 2.0)
            nn.init.orthogonal_(attention.v_proj.weight)
            nn.init.orthogonal_(attention.o_proj.weight, gain=2.0)

    def features(self, model: PreTrainedModel, pixels: Tensor) -> Tensor:
        """Patch features, (rows, patches, width)."""
        patches = torch.ones(len(pixels), GRID, GRID, dtype=torch.bool)
        return self.tower(model)(pixel_values=pixels, patch_attention_mask=patches).last_hidden_state  # type: ignore[no-any-return]

    def project(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        """Image tokens, (rows, image tokens, width)."""
        seen = torch.ones(features.shape[:2], dtype=torch.bool)
        return self.connector(model)(features, attention_mask=seen)  # type: ignore[no-any-return]

    def inputs(self, pixels: Tensor) -> dict[str, Tensor]:
        """What the model takes beside the token ids."""
        seen = torch.ones(len(pixels), 1, *pixels.shape[2:], dtype=torch.long)
        return {"pixel_values": pixels[:, None], "pixel_attention_mask": seen}


FAMILIES: dict[str, Family] = {family.name: family for family in (Llava(), Idefics2())}
