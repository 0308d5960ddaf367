"""Losses on intermediate layers, read through the decoder's final norm and unembedding (the "logit lens").

A pretrained language model predicts words at every position, and its later layers can be read as words. A model that
is trained on answers alone has no reason to write words at the image's positions; these losses give it one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LENS_WEIGHT = 0.5
PATCHES_FROM = 4  # layers, counted from 1, after which image positions name their patch
SLOTS_FROM = 8  # layers after which the next object has its probabilities already


def lens_losses(
    states: Sequence[Tensor], patch_loss: Callable[[Tensor], Tensor], object_loss: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the mean loss of patches and of objects over the layers that are read.

    Args:
        states: The hidden states after each layer, with the final norm applied.
        patch_loss: Loss of naming the patches from the states of one layer.
        object_loss: Loss of the next objects from the states of one layer.
    """
    patches = torch.stack([patch_loss(state) for state in states[PATCHES_FROM - 1 :]])
    objects = torch.stack([object_loss(state) for state in states[SLOTS_FROM - 1 : -1]])
    return {"lens_patch": LENS_WEIGHT * patches.mean(), "lens_object": LENS_WEIGHT * objects.mean()}
