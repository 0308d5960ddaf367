"""Helpers shared by several modules: prompts with placeholder tokens for the images of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .base import (
    IMAGE,
    Row,
    image_seeds,
    left_pad,
    prompt_ids,
    random_pixels,
    stacked_pixels,
)

IMAGE_START = 4
IMAGE_END = 5
VIDEO = 6
AUDIO = 7
VIDEO_START = 8
VIDEO_END = 9

PATH = "model.language_model.layers"
"""Where most models keep the layers of their decoder."""


def with_pixels(rows: Sequence[Row], image: Sequence[int], shape: Sequence[int] = (3, 16, 16)) -> dict[str, Any]:
    """A batch in which each image is the token sequence ``image`` and one entry of ``pixel_values``."""
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image) for row in rows]))
    pixels = stacked_pixels(rows, shape)
    if pixels is not None:
        batch["pixel_values"] = pixels
    return batch


def with_patches(
    rows: Sequence[Row],
    features: int,
    *,
    grid: tuple[int, int, int] = (1, 4, 4),
    merge: int = 2,
    types: bool = True,
) -> dict[str, Any]:
    """A batch as of the Qwen-VL processors: patches of all images in one matrix, and the grid of each image.

    Args:
        rows: the prompts.
        features: number of values of one patch.
        grid: frames, rows and columns of patches of every image.
        merge: patches along each side that become one token.
        types: whether to pass ``mm_token_type_ids``, 1 where the token is an image placeholder.
    """
    patches = grid[0] * grid[1] * grid[2]
    image = [IMAGE_START] + [IMAGE] * (patches // merge**2) + [IMAGE_END]
    batch: dict[str, Any] = dict(left_pad([prompt_ids(row, image) for row in rows]))
    if types:
        batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    seeds = image_seeds(rows)
    if seeds:
        batch["pixel_values"] = torch.cat([random_pixels(seed, (patches, features)) for seed in seeds])
        batch["image_grid_thw"] = torch.tensor([grid] * len(seeds))
    return batch
