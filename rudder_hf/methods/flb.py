"""FLB: add the first step's logits to later ones. And its plausibility cut-off alone, the control of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from .base import grid, number
from .runs import LoopMethod, Run, cut_off, refuse_beam_sampling


@dataclass(frozen=True)
class Plausibility(LoopMethod):
    """The plausibility cut-off of VCD, PAI and FLB, and nothing else.

    Tokens less likely than `beta` times the likeliest are cut off. Greedy search is vanilla's; under sampling the
    cut-off alone lowers hallucination, so that methods with one have to be compared with this one.
    """

    name = "plausibility"
    searched = grid(beta=(0.01, 0.03, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7))

    beta: float = number(0.1, 0, 1)  # 0 keeps every token

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        refuse_beam_sampling(run, self.beta)
        run.on_logits = lambda logits: cut_off(logits, logits, self.beta)


@dataclass(frozen=True)
class FLB(Plausibility):
    """First logit boosting (Ha et al., CVPR 2026): z_t + w_t z_0 with w_t = gamma (1 - exp(-rate t)), t from 0 on.

    Tokens less likely than `beta` times the likeliest, by z_t, are cut off.

    Unlike the published code: greedy search and beams work, where the code only samples; each row has its own z_0.
    """

    name = "flb"
    searched = grid(gamma=(0.1, 0.2, 0.3, 0.5), rate=(0.05, 0.2))

    gamma: float = number(0.3, 0, 100)  # weight that is reached after many tokens
    rate: float = number(0.05, 0, 100)  # lambda: how fast it is reached

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        refuse_beam_sampling(run, self.beta)
        first: list[Tensor] = []

        def boost(logits: Tensor) -> Tensor:
            # Beams move among the rows of their prompt, which all had the same first logits.
            if run.steps == 1:
                first.append(logits)
            weight = self.gamma * -math.expm1(-self.rate * (run.steps - 1))
            return cut_off(logits + weight * first[0].to(logits.device), logits, self.beta)

        run.on_logits = boost
