"""VCD: contrast the logits for the image with those for a noisy image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.backbones import image_token_ids
from .base import grid, number, sample_normal
from .branches import Branch
from .runs import LoopMethod, Run, cut_off, refuse_beam_sampling

_DIFFUSION_STEPS = 1000
# Where a tensor holds rows of patches, this one says how many belong to each image.
_GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}


@dataclass(frozen=True)
class VCD(LoopMethod):
    """Visual contrastive decoding (Leng et al., CVPR 2024): (1 + alpha) z(v) - alpha z(v').

    v' is the image after `noise_step` steps of Gaussian diffusion on the normalised pixels. Tokens less likely than
    `beta` times the likeliest, given the clean image, are cut off.

    Unlike the published code: greedy search (arg-max of the contrast) and beams (the contrast becomes the logits, and
    the noisy branch's cache follows the beams) work, where the code only samples; the noise is drawn by `seed` and
    sample, not from the global generator; `noise_step=0` means no noise, where the code's first step adds a little.
    """

    name = "vcd"
    # Each token is forwarded in both branches, and the prompt with the noisy image is prefilled too.
    forwards_per_token = 2.0
    extra_prefills = 1
    searched = grid(alpha=(0.1, 0.25, 0.5, 1.0), noise_step=(500, 800))

    alpha: float = number(1.0, 0, 100)  # strength of the contrast; the scripts use 1
    beta: float = number(0.1, 0, 1)  # plausibility cut-off; 0 keeps every token
    noise_step: int = number(500, 0, _DIFFUSION_STEPS - 1)  # of a thousand steps of diffusion
    seed: int = number(0, 0, 2**63)  # of the noise

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        refuse_beam_sampling(run, self.beta)
        run.branch = Branch.prepare(run.backbone.model, {**run.arguments, **self.noisy_images(run)})
        run.on_logits = lambda logits: contrast(logits, run.advance_branch(), self.alpha, self.beta)

    def noisy_images(self, run: Run) -> dict[str, Tensor]:
        """The call's images with noise, each drawn for its own sample and its place among the sample's images."""
        noisy: dict[str, Tensor] = {}
        for name, pixels in run.arguments.items():
            if not (name.startswith("pixel_values") and isinstance(pixels, Tensor) and pixels.is_floating_point()):
                continue
            draws = [
                self._draw((height, *pixels.shape[1:]), (run.sample_ids[prompt], name, place))
                for height, prompt, place in image_owners(run, name)
            ]
            noisy[name] = add_noise(pixels, torch.cat(draws), self.noise_step)
        if not noisy:
            given = ", ".join(sorted(run.arguments))
            raise ValueError(f"vcd adds noise to `pixel_values`, but the call has none. It has: {given}.")
        return noisy

    def _draw(self, shape: tuple[int, ...], sample: tuple[Any, ...]) -> Tensor:
        """Noise for one row of images, or of one image's patches."""
        if len(shape) < 5:
            return sample_normal(shape, self.seed, *sample)
        # Several images or tiles, as many as the batch's largest row has: each gets its own, whatever that number.
        return torch.stack([sample_normal(shape[2:], self.seed, *sample, tile) for tile in range(shape[1])])[None]


def image_owners(run: Run, name: str) -> Iterator[tuple[int, int, int]]:
    """For each image of a tensor its number of rows, its prompt, and its place in that prompt.

    Images lie in the order of the prompts, one for each row of the tensor, or, where a grid gives their sizes (Qwen),
    several rows of patches to an image. The number of placeholders says which prompt they belong to.
    """
    pixels, grid = run.arguments[name], run.arguments.get(_GRIDS.get(name, ""))
    heights = [1] * len(pixels) if grid is None else grid.prod(-1).tolist()
    ids, tokens, prompts = run.call.input_ids, image_token_ids(run.backbone.model), run.call.batch
    placeholders: list[int] = []
    if ids is not None and tokens and (grid is not None or len(pixels) != prompts):
        placeholders = torch.isin(ids, torch.tensor(tokens, device=ids.device)).sum(dim=1).cumsum(dim=0).tolist()
    places: Counter[int] = Counter()
    start = 0
    for index, height in enumerate(heights):
        prompt = min(index, prompts - 1)
        if placeholders:
            # Images share the placeholders by size; the middle of an image's share lies within its own prompt.
            middle = (start + height / 2) / sum(heights) * placeholders[-1]
            prompt = next((row for row, last in enumerate(placeholders) if middle < last), prompts - 1)
        yield height, prompt, places[prompt]
        places[prompt] += 1
        start += height


def noise_share(step: int) -> float:
    """The share abar of the clean image's variance that is left after a step of the diffusion."""
    if step == 0:
        return 1.0
    betas = torch.sigmoid(torch.linspace(-6, 6, _DIFFUSION_STEPS, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    return float((1.0 - betas)[: step + 1].prod())


def add_noise(pixels: Tensor, noise: Tensor, step: int) -> Tensor:
    """sqrt(abar) x + sqrt(1 - abar) eps, in the dtype of the pixels.

    Where a row holds several images, blank ones are padding, which models tell by being blank: they stay so.
    """
    share = noise_share(step)
    mixed: Tensor = share**0.5 * pixels.float() + (1.0 - share) ** 0.5 * noise.to(pixels.device)
    if pixels.dim() == 5:
        mixed = mixed * (pixels != 0).flatten(2).any(dim=-1)[:, :, None, None, None]
    return mixed.to(pixels.dtype)


def contrast(logits: Tensor, other: Tensor, alpha: float, beta: float) -> Tensor:
    """(1 + alpha) z - alpha z' where z is plausible, elsewhere minus infinity."""
    return cut_off((1.0 + alpha) * logits - alpha * other.to(logits.device), logits, beta)
