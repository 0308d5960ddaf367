"""Random numbers that belong to a sample and not to its place in a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def sample_generator(seed: int, *parts: object) -> torch.Generator:
    """A generator on the CPU, seeded by a hash of the seed and whatever tells one draw from another."""
    digest = hashlib.sha256(repr((seed, *map(str, parts))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def sample_normal(shape: Sequence[int], seed: int, *parts: object) -> Tensor:
    """Standard normal float32 numbers of `sample_generator`, the same on every device."""
    return torch.randn(tuple(shape), generator=sample_generator(seed, *parts))
