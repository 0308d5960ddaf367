"""Which picture belongs to which prompt."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..core.backbones import image_token_ids
from ..core.call import Call

_GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}


def picture_owners(model: nn.Module, call: Call, name: str) -> Iterator[tuple[int, int, int, int]]:
    """For each picture of a tensor: its first row, the row after its last, its prompt, its place in that prompt.

    Pictures lie in the order of the prompts, one for each row of the tensor, or, where a grid gives their sizes
    (Qwen), several rows of patches to a picture. Whose they are is told by the number of placeholders.

    Args:
        model: The model that takes them.
        call: The arguments of `generate`.
        name: Of the tensor.
    """
    pixels: Tensor = call.arguments[name]
    grid = call.arguments.get(_GRIDS.get(name, ""))
    heights = [1] * len(pixels) if grid is None else [int(size) for size in grid.prod(-1)]
    owners = _owners(model, call, heights, by_prompt=grid is None and len(pixels) == call.batch)
    start, places = 0, dict.fromkeys(range(call.batch), 0)
    for height, prompt in zip(heights, owners, strict=True):
        yield start, start + height, prompt, places[prompt]
        places[prompt] += 1
        start += height


def _owners(model: nn.Module, call: Call, heights: list[int], by_prompt: bool) -> list[int]:
    """The prompt of each picture: pictures share the placeholders in proportion to their sizes."""
    tokens, ids = image_token_ids(model), call.input_ids
    if by_prompt or ids is None or not tokens:
        return [min(index, call.batch - 1) for index in range(len(heights))]
    placeholders = torch.isin(ids, torch.tensor(tokens, device=ids.device)).sum(dim=1).cumsum(dim=0).tolist()
    total, seen, owners = sum(heights), 0, []
    for height in heights:
        # The middle of a picture's share of the placeholders lies within its own prompt.
        middle = (seen + height / 2) / total * placeholders[-1]
        owners.append(next((row for row, last in enumerate(placeholders) if middle < last), call.batch - 1))
        seen += height
    return owners
