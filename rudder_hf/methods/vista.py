"""VISTA: steer every layer towards what the image changed in it, and mix in the logits of late layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from .base import grid, number
from .branches import SINGLE, Branch, text_branch
from .runs import LoopMethod, Run, turn

# The window of blocks that the published code averages, for 32 layers: 25 to 30, both included.
_WINDOW_START, _WINDOW_DEPTH = 25, 32


@dataclass(frozen=True)
class Vista(LoopMethod):
    """Visual steering vector and self-logits augmentation (Li et al., ICML 2025).

    Steering vector: before the generation, the prompt is forwarded with and without its image; v_l is the difference
    of block l's output at the last token. Then, at every layer and position, the MLP's output x becomes
    ||x|| norm(norm(x) + lambda c norm(v_l)) with c = 1 + max(0, cos(x, -v_l)).

    Logits augmentation: z = (1 - gamma) z + gamma z_aug, where z_aug is the mean of the head's logits over the raw
    outputs (no final norm) of late blocks.

    Unlike the published code: v_l is the plain difference, where the code adds 1 to the first coordinate of the first
    layer (a rank-one PCA of a single sample); any dtype, where the code casts to float16; any batch size, where the
    code asserts one; the decoder's layers, where the code takes the longest list of modules (the vision tower in
    Qwen2.5-VL). For depths other than 32 the window of late blocks is scaled, which the paper does not define.
    """

    name = "vista"
    extra_prefills = 2  # the prompt with and without its image
    searched = grid(strength=(0.03, 0.06, 0.1, 0.17), gamma=(0.1, 0.3))

    # lambda. Published for LLaVA-1.5: 0.17 for captions (CHAIR), 0.01 for yes/no questions (POPE), 0.1 for MMHal
    strength: float = number(0.17, 0, 100)
    gamma: float = number(0.3, 0, 1)  # share of the augmented logits
    # First and last block that are averaged, from 0 on, both included; None scales the published 25 to 30
    window: tuple[int, int] | None = None

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        first, last = late_blocks(len(run.backbone.layers), self.window)
        vectors = [run.expand(vector) for vector in steering_vectors(run)]
        late = run.read_out(range(first + 1, last + 2))

        def steer(layer: int, x: Tensor) -> Tensor:
            v = vectors[layer][:, None].to(x.device)
            c = 1.0 + cosine_similarity(x.float(), -v, dim=-1).clamp_min(0.0).unsqueeze(-1)
            return turn(x, v, self.strength * c)

        def augment(logits: Tensor) -> Tensor:
            return (1.0 - self.gamma) * logits + self.gamma * torch.stack(late()).mean(dim=0).to(logits.device)

        run.hook_mlps(steer)
        run.on_logits = augment


def steering_vectors(run: Run) -> list[Tensor]:
    """What the image changes in each block's output at the prompt's last token, (prompts, hidden size) each."""
    backbone = run.backbone
    with_image = Branch.prepare(backbone.model, {**run.arguments, **SINGLE}).read(list(backbone.layers))
    without = text_branch(backbone, run.call, **SINGLE).read(list(backbone.layers))
    return [positive - negative for positive, negative in zip(with_image, without, strict=True)]


def late_blocks(count: int, window: tuple[int, int] | None) -> tuple[int, int]:
    """First and last block of the window, both included, for a model of `count` layers.

    Raises:
        ValueError: The window lies outside of the model, or has its last block, whose logits it is mixed with.
    """
    latest = count - 2
    first, last = window or (min(round(_WINDOW_START / _WINDOW_DEPTH * count), latest), latest)
    if not 0 <= first <= last <= latest:
        raise ValueError(f"vista: `window` is {window}, but has to lie within blocks 0 to {latest}, first to last.")
    return first, last
