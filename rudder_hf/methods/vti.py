"""VTI: turn every layer towards a fixed direction from hallucinated to correct captions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..core.backbones import find_backbone
from .base import Inputs, Sources, grid, number
from .branches import Branch
from .runs import LoopMethod, Run, turn

_STRENGTH_UNIT = 0.1


@dataclass(frozen=True)
class VTI(LoopMethod):
    """Visual and textual intervention (Liu et al., ICLR 2025), its textual part.

    At every layer and position the MLP's output x becomes ||x|| norm(norm(x) + 0.1 alpha norm(d_l)), where the
    directions d are found once for a model: `textual_directions`.

    Unlike the published code: only the textual directions. The visual ones (off by default in the code) are bound to
    one vision tower and one resolution, and are not implemented. Directions come from pairs of captions that you pass,
    where the code has 100 of its own on COCO images; any dtype, where the code casts to float16.
    """

    name = "vti"
    searched = grid(alpha=(0.1, 0.2, 0.4, 0.8, 1.2, 1.8, 2.6, 4.0))

    directions: Tensor | None = field(default=None, compare=False, repr=False)  # d, (layers, hidden size)
    alpha: float = number(0.8, 0, 1000)  # strength: 0.8 in the code, 0.9 in its README

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.directions, Tensor) or self.directions.dim() != 2:
            raise ValueError(
                "vti needs `directions`, a tensor of shape (layers, hidden size). Find them once for a model: "
                "rudder_hf.methods.vti.textual_directions(model, pairs), with pairs of inputs that end in a correct "
                "and in a hallucinated caption of the same image. The command line has pairs for the embedded models "
                "only."
            )

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """See `Method.for_model`: `directions` are found from caption pairs, if there are some."""
        if settings.get("directions") is None and sources.caption_pairs is not None:
            settings["directions"] = textual_directions(model, sources.caption_pairs())
        return cls(**settings)

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        directions = self.directions
        assert directions is not None
        layers = len(run.backbone.layers)
        if len(directions) != layers:
            raise ValueError(f"vti: `directions` are for {len(directions)} layers, but the model has {layers}.")
        if self.alpha:
            run.hook_mlps(lambda layer, x: turn(x, directions[layer].to(x.device), _STRENGTH_UNIT * self.alpha))


def textual_directions(model: nn.Module, pairs: Iterable[tuple[Inputs, Inputs]]) -> Tensor:
    """Directions from hallucinated to correct captions: mean difference plus first principal component.

    For each pair the states of all layers at the last token are compared, as one long vector. The principal component
    has unit length over all layers together, and the sign with which the pair that it fits best counts as positive.

    Args:
        model: The model that is to be steered.
        pairs: Inputs as for `generate` that end in a correct caption, and the same with a hallucinated one. Rows of a
            batch count as pairs of their own.

    Returns:
        (layers, hidden size) in float32, on the CPU.
    """
    backbone = find_backbone(model)
    # As in `hidden_states`, the last state is taken after the final norm.
    decoder = backbone.loop.get_submodule(backbone.layers_path.rpartition(".")[0])
    modules = [*list(backbone.layers)[:-1], decoder]
    differences = []
    for correct, hallucinated in pairs:
        states = [
            torch.stack(Branch.prepare(backbone.model, {**inputs, "max_new_tokens": 1}).read(modules), dim=1).cpu()
            for inputs in (correct, hallucinated)
        ]
        differences.append(states[0] - states[1])
    if not differences:
        raise ValueError("vti: there are no pairs to find directions from.")
    stacked = torch.cat(differences)
    mean = stacked.mean(dim=0)
    return mean + _first_component((stacked - mean).flatten(1)).view_as(mean)


def _first_component(centred: Tensor) -> Tensor:
    """First right singular vector of a centred matrix; zero where nothing varies."""
    if not centred.any():
        return torch.zeros_like(centred[0])
    u, _, v = torch.linalg.svd(centred, full_matrices=False)
    component: Tensor = v[0] * torch.sign(u[u[:, 0].abs().argmax(), 0])
    return component
