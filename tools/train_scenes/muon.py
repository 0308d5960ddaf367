"""Muon in float32.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, found by a Newton-Schulz
iteration, which grounds in fewer steps than AdamW does. The steps are those of `torch.optim.Muon` with
`adjust_lr_fn="match_rms_adamw"`, which runs the iteration in bfloat16, one matrix at a time: on a CPU without bfloat16
arithmetic that takes twelve times as long as it does here, where matrices of one shape are handled together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEP_SIZE = 0.2  # root mean square of a step, in units of the learning rate: about that of AdamW


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration on a stack (matrices, rows, columns): singular values go to about one."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices only."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                    state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                    shapes.setdefault(tuple(parameter.shape), []).append(parameter)
            for shape, members in shapes.items():
                moments = [self.state[p]["momentum_buffer"] for p in members]
                pairs = zip(members, moments, strict=True)
                stack = torch.stack([p.grad.lerp(moment, group["momentum"]) for p, moment in pairs])  # type: ignore[union-attr]
                # The root mean square of an orthogonal matrix falls with its longest side; now it is the same for all.
                updates = orthogonalise(stack) * (STEP_SIZE * max(shape) ** 0.5)
                for parameter, update in zip(members, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
