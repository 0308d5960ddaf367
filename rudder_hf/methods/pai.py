"""PAI: amplify attention to the image, and lead away from what the text alone would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad

from ..core.errors import UnsupportedModelError
from .base import check_number, grid
from .branches import image_positions, text_branch
from .layers import Attention, around_attention, attention_scores
from .runs import LoopMethod, Run, plausible, refuse_beam_sampling


@dataclass(frozen=True)
class PAI(LoopMethod):
    """Paying more attention to image (Liu et al., ECCV 2024).

    Attention: in layers from `first_layer` on, the last query's scores w before the softmax become w + alpha |w| at
    image tokens. Guidance: log p = u + gamma (s - u), with s the log-probabilities and u those of the prompt without
    its image, unamplified; tokens less likely than `cut_off` times the likeliest are cut off.

    Unlike the published code: image tokens are found for each row, where the code has one range for all; the branch
    without image has an attention mask, and its cache follows the beams; any attention implementation, grouped
    queries included; under beams the guided scores are normalised again.

    Attributes:
        alpha: Strength of the amplification.
        gamma: Strength of the guidance; None is none. 1.1 as in the README's commands (2 in the code's defaults),
            which recommend it for sampling.
        cut_off: Plausibility cut-off of the guidance; 0 keeps every token.
        first_layer: First layer that is amplified.
        last_layer: Layer before which to stop; None amplifies to the end, as published for 32 layers.
        first_token: Whether the last prompt token, which emits the first answer token, is amplified. None does as the
            published code: yes, but with guidance no.
    """

    name = "pai"
    searched = grid(alpha=(0.1, 0.2, 0.35, 0.5), gamma=(1.1, 1.5))

    alpha: float = 0.2
    gamma: float | None = 1.1
    cut_off: float = 0.1
    first_layer: int = 2
    last_layer: int | None = None
    first_token: bool | None = None

    def __post_init__(self) -> None:
        check_number(self, "alpha", 0.0, 1000.0)
        check_number(self, "cut_off", 0.0, 1.0)
        check_number(self, "first_layer", 0, 10_000, whole=True)
        if self.gamma is not None:
            check_number(self, "gamma", 0.0, 1000.0)
        if self.last_layer is not None:
            check_number(self, "last_layer", self.first_layer, 10_000, whole=True)

    @property
    def forwards_per_token(self) -> float:
        """Guidance forwards each token in the branch without image too."""
        return 1.0 if self.gamma is None else 2.0

    @property
    def extra_prefills(self) -> int:
        """Guidance prefills the prompt without its image."""
        return 0 if self.gamma is None else 1

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        layers = list(run.backbone.layers)[self.first_layer : self.last_layer]
        if self.alpha and not layers:
            raise ValueError(
                f"{self.name} amplifies layers from {self.first_layer} on, but the model has "
                f"{len(run.backbone.layers)}: set `first_layer`."
            )
        amplifier = Amplifier(run, self.alpha, self._amplifies_first_token())
        if self.alpha:
            run.exits.enter_context(around_attention(run.backbone.loop, layers, amplifier.around))
        if self.gamma is not None:
            if self.cut_off:
                refuse_beam_sampling(run)
            run.branch = text_branch(run.backbone, run.call, run.options())

        def finish(logits: Tensor) -> Tensor:
            if self.alpha and amplifier.calls < len(layers):
                raise UnsupportedModelError(
                    f"{self.name} amplifies {len(layers)} layers, but the model called its attention function in "
                    f"{amplifier.calls} of them."
                )
            amplifier.calls = 0
            if self.gamma is None:
                return logits
            return guide(logits, run.advance_branch(), self.gamma, self.cut_off)

        run.on_logits = finish

    def _amplifies_first_token(self) -> bool:
        return self.gamma is None if self.first_token is None else self.first_token


@dataclass(frozen=True)
class PAIAttention(PAI):
    """PAI's amplified attention alone."""

    name = "pai-attention"
    searched = grid(alpha=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0))

    gamma: float | None = None


class Amplifier:
    """The attention function of amplified layers.

    Args:
        run: The call.
        alpha: Strength.
        first_token: Whether the prefill's last position is amplified.
    """

    def __init__(self, run: Run, alpha: float, first_token: bool) -> None:
        self.run = run
        self.alpha = alpha
        self.first_token = first_token
        self.image = run.expand(image_positions(run.backbone.model, run.call))
        self.calls = 0

    def around(self, original: Attention) -> Attention:
        """Recompute the last query's output with amplified scores; the others keep the original's."""

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
        ) -> tuple[Tensor, Any]:
            output, weights = original(module, query, key, value, attention_mask, **kwargs)
            if not self.run.active:
                return output, weights
            self.calls += 1
            if self.run.steps == 0 and not self.first_token:
                return output, weights
            last = self._last_row(query[:, :, -1:], key, value, attention_mask, kwargs)
            return torch.cat([output[:, :-1], last.to(output.dtype)], dim=1), weights

        return attend

    def _last_row(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Tensor:
        """softmax(w + alpha |w| at image tokens) V for the last query, (rows, 1, heads, head size)."""
        keys = key.shape[2]
        if keys < self.image.shape[1]:
            raise UnsupportedModelError(
                f"{self.run.method} cannot tell image tokens from others where a sliding window has dropped a part of "
                f"the prompt ({keys} of {self.image.shape[1]} positions are left)."
            )
        scores = attention_scores(query, key, mask, options)
        image = pad(self.image.to(key.device), (0, keys - self.image.shape[1]))[:, None, None]
        # What a sliding window hides stays hidden.
        scores = torch.where(image & scores.isfinite(), scores + self.alpha * scores.abs(), scores)
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        heads = query.shape[1] // value.shape[1]
        return torch.matmul(weights, value.repeat_interleave(heads, dim=1)).transpose(1, 2)


def guide(logits: Tensor, other: Tensor, gamma: float, cut_off: float) -> Tensor:
    """Scores u + gamma (s - u) where s is plausible; s and u are the log-probabilities of `logits` and `other`."""
    s, u = log_softmax(logits, dim=-1), log_softmax(other.to(logits.device), dim=-1)
    return (u + gamma * (s - u)).masked_fill(~plausible(s, cut_off), -torch.inf)
