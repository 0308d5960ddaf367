"""What every entry of the zoo is made of: the table's row types and the helpers the builders share.

A zoo model is built from a tiny configuration with random weights, so nothing is downloaded and ``generate`` takes
milliseconds. Token ids follow one convention throughout: ``PAD`` (0), ``BOS`` (1), ``EOS`` (2), then up to
``FIRST_WORD`` the special tokens of the family (image placeholder, image start, row separators...), and from there to
the end of the vocabulary ordinary words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

PAD = 0
BOS = 1
EOS = 2
IMAGE = 3
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


@dataclass(frozen=True)
class Family:
    """One kind of vision-language model.

    Attributes:
        model_type: key of ``MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES``.
        build: makes the tiny random model: seeded, float32, in eval mode.
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
    """

    model_type: str
    build: Callable[[], PreTrainedModel]
    inputs: Callable[[PreTrainedModel, Sequence[Row]], dict[str, Any]]
    layers: str
    update: str = "self_attn"
    loop: str = ""
    no_attention_layers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    key: str = ""

    @property
    def name(self) -> str:
        """The family's name in the table."""
        return self.key or self.model_type


def text_ids(seed: int, n: int, low: int = FIRST_WORD, high: int = VOCAB) -> list[int]:
    """Draw ``n`` word ids from ``low`` (included) to ``high`` (excluded)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n,), generator=generator).tolist()


def random_pixels(seed: int, shape: Sequence[int]) -> torch.Tensor:
    """Draw a float32 standard normal tensor, as a normalised image would be."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator)


def image_seeds(rows: Iterable[Row]) -> list[int]:
    """One seed for each image of the batch, in the order in which the images occur in the prompts."""
    return [1000 * row.seed + 7 * index + 1 for row in rows for index in range(row.images)]


def stacked_pixels(rows: Iterable[Row], shape: Sequence[int]) -> torch.Tensor | None:
    """All images of a batch stacked in prompt order; None where there is no image at all."""
    seeds = image_seeds(rows)
    return torch.stack([random_pixels(seed, shape) for seed in seeds]) if seeds else None


def prompt_ids(row: Row, image: Sequence[int], *, low: int = FIRST_WORD, high: int = VOCAB) -> list[int]:
    """One word, the images each as the token sequence ``image``, then the remaining words.

    The first word does not occur again in the prompt: prompt lookup would continue it with image placeholders.
    """
    words = text_ids(row.seed, row.words, low, high)
    first = words[:1]
    while first and first[0] in words[1:]:
        first = [low + (first[0] + 1 - low) % (high - low)]
    return first + list(image) * row.images + words[1:]


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int = PAD) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` of a left-padded batch."""
    width = max(len(sequence) for sequence in sequences)
    ids = [[pad_id] * (width - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def image_batch(
    rows: Sequence[Row],
    image: Sequence[int],
    shape: Sequence[int] = (3, 16, 16),
    *,
    high: int = VOCAB,
) -> dict[str, Any]:
    """A batch in which each image is the token sequence ``image`` and one entry of ``pixel_values``.

    ``pixel_values`` is left out where the batch has no image; ``high`` is the first id that is no word.
    """
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image, high=high) for row in rows]))
    pixels = stacked_pixels(rows, shape)
    if pixels is not None:
        batch["pixel_values"] = pixels
    return batch


def token_types(input_ids: torch.Tensor, image: int = IMAGE) -> torch.Tensor:
    """1 where a token is an image placeholder and 0 elsewhere, as processors tell modalities apart."""
    return (input_ids == image).long()


def resolve(root: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path; the root itself for an empty path."""
    return root.get_submodule(path)


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> int:
    """Number of inputs that one output of a weight sums over."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return parameter[0].numel()
    return parameter.shape[-1]


def spread(model: nn.Module, gain: float = 1.5, noise: float = 0.1, embed: float = 1.0) -> None:
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


def silence(head: nn.Module, ids: Iterable[int], scale: float) -> None:
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


def tiny(
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    *,
    gain: float = 1.5,
    noise: float = 0.1,
    embed: float = 1.0,
    head: float = 3.0,
    special: Iterable[int] = range(FIRST_WORD),
    after: Callable[[Any], None] | None = None,
) -> Any:
    """Build a model of a tiny configuration: seeded, float32, eval mode, with weights that give varied output.

    Args:
        cls: the model class.
        config: its configuration.
        gain: see :func:`spread`.
        noise: see :func:`spread`.
        embed: see :func:`spread`.
        head: standard deviation of the logits, about.
        special: ids that shall not be generated.
        after: last changes to the weights, called under ``torch.no_grad`` and the seed.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = cls(config).eval()
        spread(model, gain, noise, embed)
        output = model.get_output_embeddings()
        if output is not None:
            silence(output, special, head)
        if after is not None:
            after(model)
    for module in model.modules():
        settings = getattr(module, "generation_config", None)
        if isinstance(settings, GenerationConfig):
            settings.eos_token_id = None
            settings.bos_token_id = BOS
            settings.pad_token_id = PAD
            settings.do_sample = False
    return model
