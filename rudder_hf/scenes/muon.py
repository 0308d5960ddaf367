"""Muon with AdamW for the rest: hidden matrices get orthogonalised momentum, which grounds in fewer steps.

Muon (Jordan et al., 2024) replaces each matrix's momentum by the nearest orthogonal matrix, found by a
Newton-Schulz iteration. Matrices of one shape are handled together, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MATRIX_RATE = 0.8  # root mean square of a step, in units of the learning rate


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


class MuonAdamW(torch.optim.Optimizer):
    """Parameter groups with `"muon": True` are stepped by Muon, the others by AdamW."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95) -> None:
        defaults = {"lr": lr, "weight_decay": 0.0, "muon": False, "momentum": momentum, "betas": (0.9, 0.98)}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["muon"]:
                self._muon(parameters, group)
            else:
                for parameter in parameters:
                    self._adamw(parameter, group)

    def _muon(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in parameters:
            state = self.state[parameter]
            state.setdefault("moment", torch.zeros_like(parameter))
            state["moment"].lerp_(parameter.grad, 1 - group["momentum"])
            shapes.setdefault(tuple(parameter.shape), []).append(parameter)
        for shape, members in shapes.items():
            stack = torch.stack([p.grad.lerp(self.state[p]["moment"], group["momentum"]) for p in members])  # type: ignore[union-attr]
            # The root mean square of an orthogonal matrix falls with its longest side; this makes it the same for all.
            updates = orthogonalise(stack) * (MATRIX_RATE * max(shape) ** 0.5)
            for parameter, update in zip(members, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    def _adamw(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        gradient, (beta1, beta2) = parameter.grad, group["betas"]
        state["step"] += 1
        count = float(state["step"])
        state["first"].lerp_(gradient, 1 - beta1)
        state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (state["second"] / (1 - beta2**count)).sqrt_().add_(1e-8)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["first"], scale, value=-group["lr"] / (1 - beta1**count))
