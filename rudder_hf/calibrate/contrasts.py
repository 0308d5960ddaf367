"""The image-value contrast, which is not in the paper, in rows that are decoded together: each row has its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.backbones import Backbone
from ..core.call import Call
from ..core.contrast import ContrastMap, ImageContrast, PendingImages, image_places, open_contrast
from .prompts import Prompt
from .settings import Setting


def open_contrasts(
    backbone: Backbone,
    call: Call,
    prompt: Prompt,
    image_tokens: Sequence[int],
    settings: Sequence[Setting],
    images: int,
    other_image: bool,
) -> list[ImageContrast]:
    """The edits of rows, one for each place of an edit, which leaves the other rows alone.

    Args:
        backbone: The model's parts.
        call: Has the prompts.
        prompt: The same prompts, read.
        image_tokens: Ids of image placeholders.
        settings: Of the rows of a prompt; those of the first prompt come first.
        images: How many of the prompts have rows.
        other_image: The control: the deviations are those of the next prompt's image.
    """
    found = []
    for place in dict.fromkeys(_place(setting) for setting in settings if setting.contrast):
        strengths = [setting.contrast if _place(setting) == place else 0.0 for setting in settings] * images
        edit = open_contrast(backbone, call, image_tokens, strengths, *place)
        positions = edit.pending[0].positions
        edit.pending = [PendingImages(positions[:images]).expanded(len(strengths), 0)]
        if other_image:
            edit.contrast_map = _lent(prompt, positions, len(settings))
        found.append(edit)
    return found


def _place(setting: Setting) -> tuple[int, int]:
    return setting.contrast_first_layer, setting.contrast_after


def _lent(prompt: Prompt, positions: Sequence[Sequence[Tensor]], settings: int) -> ContrastMap:
    """The deviations of the next prompt's first image, position by position."""
    layers = prompt.kwargs["past_key_values"].layers

    def lend(deviations: list[Tensor], rows: list[int], layer: int) -> list[Tensor]:
        found = []
        for own, row in zip(deviations, rows, strict=True):
            image = row // settings + 1
            places = image_places(layers[layer], layer, positions[image][0])
            if places is None:
                found.append(torch.zeros_like(own))
                continue
            values = layers[layer].values[image : image + 1, :, places.to(own.device)].to(own.dtype)
            other = values - values.mean(dim=2, keepdim=True)
            # Images may differ in their number of positions.
            found.append(other[:, :, torch.arange(own.shape[2], device=own.device) % other.shape[2]])
        return found

    return lend
