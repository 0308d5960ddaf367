"""RUDDER as the authors' public code has it, which differs from the paper's text (docs/paper.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.backbones import attention_update, model_type, resolve_layer, self_attention
from ..core.errors import UnsupportedModelError
from ..core.steering import card, steer_step, step_constants
from .branches import SINGLE, Branch, hidden_states_of
from .rudder import RudderBeta
from .runs import LoopMethod, Run

_USED_SETTINGS = ("layer", "alpha_max", "k", "c", "g_min", "g_max")
_FIXED = ("pool", "span", "norm_cap", "steer_first_token")


@dataclass(frozen=True)
class RudderReleased(LoopMethod, RudderBeta):
    """RUDDER-Beta as released: read in a forward of its own, and applied to the prompt as well.

    At the target layer n_i is the normed state that enters self-attention, A_i what self-attention returns, and
    d_i = A_i - n_i. The direction v is the unit vector of sum_i |d_i| d_i over the prompt without padding. Then at
    every position of the prompt and of the answer A_t becomes A_t + alpha_max g v, with the Beta gate g of
    cos(A_t, v), clamped to [g_min, g_max].

    The paper pools A_i in the prefill, gates by what enters the layer, and steers the answer only. Unlike the
    released code: float32, rounded once, and one form for all models, where the code has other clamps for each model
    and another vector for InstructBLIP.
    """

    name = "rudder-released"
    extra_prefills = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if given := [name for name in _FIXED if getattr(self, name) is not None]:
            raise ValueError(f"{self.name} has no `{given[0]}`. Its settings: {', '.join(_USED_SETTINGS)}.")

    def settings(self) -> dict[str, Any]:
        """See `Method.settings`."""
        return {name: value for name, value in super().settings().items() if name in _USED_SETTINGS}

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        config = self.rudder_config()
        index = resolve_layer(run.backbone, config.layer)
        layer = run.backbone.layers[index]
        attention, update = self_attention(layer), attention_update(layer)
        branch = Branch.prepare(run.backbone.model, {**run.arguments, **SINGLE})
        mask = branch.model_kwargs.get("attention_mask")  # of the prompt; the branch makes it longer
        (normed, updates), (entered, _) = branch.read([attention, layer], _input_and_output)
        if update.module is not attention or update.multiplier != 1 or normed is entered:
            raise UnsupportedModelError(
                f"{self.name} cannot run on {model_type(run.backbone.model)!r}: it needs layers that norm what enters "
                f"self-attention and add what it returns, which layer {index} ({type(layer).__name__}) does not do. "
                "Use rudder-beta, which finds the update in other layers too."
            )
        v = run.expand(card(updates.float() - normed.float(), mask, "norm"))
        values = (config.alpha_max, config.k, config.c, config.g_min, config.g_max, torch.inf)
        constants = step_constants(v, *(v.new_full(v.shape[:1], value) for value in values))
        run.hook_output(attention, lambda output: steer_step(output, output, constants))


def _input_and_output(args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> tuple[Tensor, Tensor]:
    return args[0] if args else kwargs["hidden_states"], hidden_states_of(output)
