"""What every entry of the zoo is made of: the table's row types, and tiny models from tiny configurations.

A zoo model has random weights, so nothing is downloaded and ``generate`` takes milliseconds. Token ids follow one
convention throughout: ``PAD`` (0), ``BOS`` (1), ``EOS`` (2), then up to ``FIRST_WORD`` the special tokens of the
family (image placeholder, image start, row separators...), and from there to the end of the vocabulary ordinary words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

PAD = 0
BOS = 1
EOS = 2
IMAGE = 3
IMAGE_START = 4
IMAGE_END = 5
VIDEO = 6
AUDIO = 7
VIDEO_START = 8
VIDEO_END = 9
FIRST_WORD = 10
VOCAB = 120

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
"""What the configurations of most decoders have in common, in their tiny form."""

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
"""What the configurations of most vision towers have in common, in their tiny form: four patches to an image."""


def text(model_type: str = "", without: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """The configuration of a tiny decoder of a type; without one, of the type that the whole model has."""
    return _part(model_type, {key: value for key, value in TEXT.items() if key not in without}, changes)


def vision(model_type: str = "", without: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """The configuration of a tiny vision tower of a type; without one, of the type that the whole model has."""
    return _part(model_type, {key: value for key, value in VISION.items() if key not in without}, changes)


def _part(model_type: str, common: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {**({"model_type": model_type} if model_type else {}), **common, **changes}


@dataclass(frozen=True)
class Row:
    """One prompt of a batch.

    Its content depends on its own fields alone, so that a row alone equals the same row in a batch.

    Attributes:
        seed: what the words and the pixels are drawn from.
        words: number of text tokens beside the image tokens.
        images: number of images in the prompt; 0 is a text-only prompt.
    """

    seed: int
    words: int
    images: int = 1


@dataclass(frozen=True, eq=False)
class Family:
    """One kind of vision-language model.

    Attributes:
        model_type: key of ``MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES``.
        config: the tiny configuration; a part of it that names a ``model_type`` becomes a configuration of that type.
        inputs: makes the keyword arguments of ``model.generate`` for a batch of rows, left-padded.
        layers: dotted path from the model to the ``ModuleList`` of its decoder's layers.
        update: dotted path in a layer to the module whose output is what self-attention adds to the residual stream;
            in sandwich-norm layers that is the norm after attention.
        loop: dotted path to the module that runs the generation loop; empty where it is the model itself.
        no_attention_layers: indices of the tiny model's layers that have no self-attention.
        notes: what stock transformers itself cannot do or does wrong here: "padding" (a left-padded row differs from
            the row alone), "beams" (beam search fails), "static" (the static cache fails or differs from the dynamic
            one), "no_cache" (``use_cache=False`` fails or differs), "lookup" (prompt lookup fails or differs from
            greedy search), "text_only" (a prompt without image fails), "multi_image" (two images in one prompt fail).
        key: name in the table, where one model type has several entries; empty means ``model_type``.
        gain: see :func:`spread`.
        embed: see :func:`spread`.
        special: ids that shall not be generated.
        after: last changes to the model, called under ``torch.no_grad`` and the seed.
    """

    model_type: str
    config: dict[str, Any]
    inputs: Callable[[PreTrainedModel, Sequence[Row]], dict[str, Any]]
    layers: str = "model.language_model.layers"
    update: str = "self_attn"
    loop: str = ""
    no_attention_layers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    key: str = ""
    gain: float = 1.5
    embed: float = 1.0
    special: Sequence[int] = range(FIRST_WORD)
    after: Callable[[Any], None] | None = None

    @property
    def name(self) -> str:
        """The family's name in the table."""
        return self.key or self.model_type

    def build(self) -> Any:
        """The tiny random model: seeded, float32, in eval mode, with weights that give varied output."""
        config = AutoConfig.for_model(self.model_type, **{key: _typed(part) for key, part in self.config.items()})
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[self.model_type])(config).eval()
            spread(model, self.gain, self.embed)
            output = model.get_output_embeddings()
            if output is not None:
                silence(output, self.special)
            if self.after is not None:
                self.after(model)
        for module in model.modules():
            settings = getattr(module, "generation_config", None)
            if isinstance(settings, GenerationConfig):
                settings.eos_token_id = None
                settings.bos_token_id = BOS
                settings.pad_token_id = PAD
                settings.do_sample = False
        return model


def _typed(part: Any) -> Any:
    """A configuration of the type that a part names; a copy, because models change their configurations."""
    if isinstance(part, dict) and "model_type" in part:
        typed: PreTrainedConfig = AutoConfig.for_model(**deepcopy(part))
        return typed
    return deepcopy(part)


def resolve(root: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path; the root itself for an empty path."""
    return root.get_submodule(path)


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> int:
    """Number of inputs that one output of a weight sums over."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return parameter[0].numel()
    return parameter.shape[-1]


def spread(model: nn.Module, gain: float, embed: float, noise: float = 0.1) -> None:
    """Re-draw the weights in place so that the layers do something: activations of order one, biases of ``noise``.

    Matrices become normal with a standard deviation of ``gain / sqrt(fan_in)``, embeddings with one of ``embed``;
    vectors (norm weights, biases, gates) keep their value and get noise on top.
    """
    done: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in done:
                continue
            done.add(id(parameter))
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter), alpha=noise)
            elif isinstance(module, nn.Embedding):
                parameter.normal_(std=embed)
            else:
                parameter.normal_(std=gain / _fan_in(module, parameter) ** 0.5)


def silence(head: nn.Module, ids: Iterable[int] = range(FIRST_WORD), scale: float = 3.0) -> None:
    """Give the language-model head logits of standard deviation about ``scale``, and the given ids a logit of zero.

    The special ids are then in effect never generated, which would make no sense (an image placeholder without image)
    and which several models refuse.
    """
    weight = head.weight
    assert isinstance(weight, torch.Tensor)
    weight.normal_(std=scale / weight.shape[-1] ** 0.5)
    weight[list(ids)] = 0.0
    bias = getattr(head, "bias", None)
    if isinstance(bias, torch.Tensor):
        bias.zero_()
