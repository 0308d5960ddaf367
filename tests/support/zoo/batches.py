"""Batches of prompts with images, as the families' processors would make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .base import FIRST_WORD, IMAGE, IMAGE_END, IMAGE_START, PAD, VOCAB, Row

Inputs = Callable[[PreTrainedModel, Sequence[Row]], dict[str, Any]]

PATCH = 4
"""Side of a patch, in pixels."""
FRAME = 3 * PATCH**2
"""Values of a patch of one frame."""
FOUR = [IMAGE] * 4
WRAPPED = [IMAGE_START, *FOUR, IMAGE_END]


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


def token_batch(rows: Sequence[Row], image: Sequence[int], *, high: int = VOCAB) -> dict[str, Any]:
    """A batch in which each image is the token sequence ``image``, without pixels; ``high`` is the first non-word."""
    return dict(left_pad([prompt_ids(row, image, high=high) for row in rows]))


def images(
    image: Sequence[int] = tuple(FOUR),
    shape: Sequence[int] = (3, 16, 16),
    *,
    sizes: Sequence[int] = (),
    types: str = "",
    high: int = VOCAB,
) -> Inputs:
    """Inputs in which each image is the token sequence ``image`` and one entry of ``pixel_values``.

    Args:
        image: the tokens of an image.
        shape: of its pixels.
        sizes: ``image_sizes`` of each image, where the model wants them.
        types: name of the input that tells image tokens from others, where the model wants it.
        high: the first id that is no word.
    """

    def inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = token_batch(rows, image, high=high)
        if types:
            batch[types] = token_types(batch["input_ids"])
        if (pixels := stacked_pixels(rows, shape)) is not None:
            batch["pixel_values"] = pixels
            if sizes:
                batch["image_sizes"] = torch.tensor([list(sizes)] * len(pixels))
        return batch

    return inputs


def by_prompt(rows: Sequence[Row], count: int, shape: Sequence[int] = (3, 16, 16)) -> torch.Tensor:
    """Pixels of the images of each prompt, padded to ``count`` with blank ones."""
    pixels = torch.zeros(len(rows), count, *shape)
    for index, row in enumerate(rows):
        for place, seed in enumerate(image_seeds([row])):
            pixels[index, place] = random_pixels(seed, shape)
    return pixels


def token_types(input_ids: torch.Tensor) -> torch.Tensor:
    """1 where a token is an image placeholder and 0 elsewhere, as processors tell modalities apart."""
    return (input_ids == IMAGE).long()


def patches(
    features: int = 2 * FRAME, *, types: bool = True, image: Sequence[int] = tuple(WRAPPED), square: bool = False
) -> Inputs:
    """Inputs as of the Qwen-VL processors: patches of all images in one matrix, and the grid of each image.

    Args:
        features: number of values of one patch; by default it has two frames.
        types: whether to pass ``mm_token_type_ids``, 1 where the token is an image placeholder.
        image: the tokens of an image of 4 by 4 patches.
        square: whether each patch is a small image of one frame.
    """

    def inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = token_batch(rows, image)
        if types:
            batch["mm_token_type_ids"] = token_types(batch["input_ids"])
        if (pixels := stacked_pixels(rows, (16, features))) is not None:
            batch["image_grid_thw"] = torch.tensor([(1, 4, 4)] * len(pixels))
            batch["pixel_values"] = pixels.view(-1, 3, PATCH, PATCH) if square else pixels.flatten(0, 1)
        return batch

    return inputs


def with_instruction(inputs: Inputs, high: int) -> Inputs:
    """Inputs with an instruction for the Q-Former, right-padded as its tokenizer does."""

    def instructed(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        batch = inputs(model, rows)
        width = max(row.words for row in rows)
        ids = [text_ids(row.seed + 1, row.words, high=high) for row in rows]
        batch["qformer_input_ids"] = torch.tensor([words + [PAD] * (width - len(words)) for words in ids])
        batch["qformer_attention_mask"] = (batch["qformer_input_ids"] != PAD).long()
        return batch

    return instructed
