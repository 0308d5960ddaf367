"""DoLa: contrast the logits of the last layer with those read out of an earlier one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from .base import grid, number
from .runs import LoopMethod, Run, cut_off, refuse_beam_sampling


@dataclass(frozen=True)
class Dola(LoopMethod):
    """Decoding by contrasting layers (Chuang et al., ICLR 2024), as in transformers' own former implementation.

    The head reads the raw residual stream of each candidate layer (no final norm); of these the one whose distribution
    is farthest from the last layer's is taken, and its log-probabilities are subtracted. The distance is
    0.5 KL(M || p_N) + 0.5 KL(M || p_j) with M the mean of both, as coded, not the textbook Jensen-Shannon divergence.
    Tokens less likely than `relative_top` times the likeliest are cut off.

    Unlike the published code: each row chooses its own layer, where the code averages over the batch (the same for
    one prompt); beams work, with the contrast as logits, where the code refuses them; whether embeddings are tied is
    read from the weights. DoLa was published with a repetition penalty of 1.2: pass `repetition_penalty=1.2` to
    `generate`, it is applied after the contrast.
    """

    name = "dola"
    # A higher cut-off leaves fewer tokens to choose from, and 1 leaves vanilla's alone.
    searched = grid(layers=("low", "high"), relative_top=(0.7, 0.35, 0.1, 0.01))

    # "low" or "high" half of the layers, every second one, or indices into `hidden_states`: 0 is the embeddings, i the
    # output of block i - 1
    layers: str | tuple[int, ...] = "low"
    relative_top: float = number(0.1, 0, 1)  # plausibility cut-off; 0 keeps every token

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in ("low", "high") and not (isinstance(self.layers, tuple) and self.layers):
            raise ValueError(
                f"{self.name}: `layers` is {self.layers!r}, but has to be 'low', 'high' or a list of indices."
            )

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        refuse_beam_sampling(run, self.relative_top)
        backbone = run.backbone
        candidates = candidate_layers(backbone.loop, len(backbone.layers), self.layers)
        early = run.read_out(candidates)
        run.on_logits = lambda logits: contrast_layers(logits, early(), self.relative_top)


def candidate_layers(loop: Any, count: int, layers: str | tuple[int, ...]) -> list[int]:
    """Indices into `hidden_states` for a model of `count` layers.

    Raises:
        ValueError: An index is out of range; the last layer is what the others are contrasted with.
    """
    if isinstance(layers, str):
        # Tied embeddings would simply repeat the input token.
        first = 2 if loop.get_output_embeddings().weight is loop.get_input_embeddings().weight else 0
        middle = (20 if layers == "low" else count - 20) if count > 40 else count // 2
        chosen = list(range(first, middle, 2) if layers == "low" else range(middle, count, 2))
        if not chosen:
            raise ValueError(
                f"DoLa finds no {layers} layers in a model of {count}: give `layers` as a list of indices."
            )
        return chosen
    wrong = [index for index in layers if not isinstance(index, int) or not 0 <= index < count]
    if wrong:
        raise ValueError(f"DoLa layers {wrong} do not exist: choose from 0 (embeddings) to {count - 1}.")
    return list(layers)


def layer_distance(mature: Tensor, early: Tensor) -> Tensor:
    """How far an early layer's distribution is from the last one's, (rows,), up to a constant factor."""
    log_p, log_q = log_softmax(mature, dim=-1), log_softmax(early, dim=-1)
    # In logarithms throughout: tokens that are next to impossible for both must not become 0 * infinity.
    log_mean = torch.logaddexp(log_p, log_q) - math.log(2.0)
    return 0.5 * (log_mean.exp() * (2.0 * log_mean - log_p - log_q)).mean(-1)


def contrast_layers(mature: Tensor, early: list[Tensor], relative_top: float) -> Tensor:
    """The contrast log p_N - log p_j for each row's farthest layer j, minus infinity where p_N is implausible.

    Args:
        mature: Logits of the last layer, (rows, vocabulary).
        early: Logits of each candidate layer, same shape.
        relative_top: Plausibility cut-off.
    """
    stacked = torch.stack([logits.to(mature.device) for logits in early])
    distances = torch.stack([layer_distance(mature, logits) for logits in stacked])
    rows = torch.arange(mature.shape[0], device=mature.device)
    chosen = stacked[distances.argmax(dim=0), rows]
    return cut_off(log_softmax(mature, dim=-1) - log_softmax(chosen, dim=-1), mature, relative_top)
