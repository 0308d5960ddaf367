"""OPERA's view of attention: the last layer's weights, and the scores of their columns."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor

from .layers import Attention, attention_scores

# A column's product of weights is multiplied by this, and the result is at most what float16 holds.
_SCORE_UNIT = 1e-7
_GREATEST_SCORE = 65504.0


class AttentionRecorder:
    """Keeps the attention weights of the forwards that it is asked to watch.

    Attributes:
        watching: Whether to keep those of the coming forward.
        weights: For each query its greatest weight over heads, normed to sum 1, (rows, queries, keys).
    """

    def __init__(self) -> None:
        self.watching = False
        self.weights: Tensor | None = None
        self._thread = threading.get_ident()

    def around(self, original: Attention) -> Attention:
        """An attention function that also keeps the weights."""

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
        ) -> tuple[Tensor, Any]:
            if self.watching and threading.get_ident() == self._thread:
                scores = attention_scores(query, key, attention_mask, kwargs)
                weights = torch.softmax(scores, dim=-1).amax(dim=1)
                self.weights = weights / weights.sum(dim=-1, keepdim=True)
            return original(module, query, key, value, attention_mask, **kwargs)

        return attend

    def take(self) -> Tensor:
        """The weights of the last watched forward.

        Raises:
            RuntimeError: The forward did not pass through the watched layer.
        """
        if self.weights is None:
            raise RuntimeError("opera did not see the last layer's attention: the model does not call it as expected.")
        weights, self.weights = self.weights, None
        return weights


def column_sums(block: Tensor, scale: float) -> Tensor:
    """The sum log prod_{i >= j} scale a_ij of each column j of attention among response tokens, (rows, tokens).

    Args:
        block: (rows, tokens, tokens), of which the lower triangle counts.
        scale: Factor of the weights.
    """
    logs = torch.log(scale * block)
    lower = torch.ones(block.shape[1:], dtype=torch.bool, device=block.device).tril()
    return torch.where(lower, logs, 0.0).sum(dim=1)


def add_row(sums: Tensor, row: Tensor, scale: float) -> Tensor:
    """`column_sums` with one more response token.

    Args:
        sums: (..., tokens).
        row: The new token's weights on all response tokens, itself included, (..., tokens + 1).
        scale: Factor of the weights.
    """
    return torch.log(scale * row) + torch.nn.functional.pad(sums, (0, 1))


def column_score(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest s_j = 1e-7 prod_{i >= j} scale a_ij, and its column j, along the last dimension."""
    greatest, column = sums.max(dim=-1)
    return (greatest + math.log(_SCORE_UNIT)).exp().clamp_max(_GREATEST_SCORE), column
