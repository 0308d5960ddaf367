"""`SettingsState`: steers every row of a batch by a setting of its own, from one reading of the prompt.

It takes the place of `GenerationState` in the layer's hooks. While the prompt is read it pools once for each way of
pooling that any setting asks for; then rows are made, one for each picture and setting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.steering import StepConstants, pool_updates, steer_step, step_constants, unit
from .settings import Setting, row_tensors


class SettingsState:
    """What the target layer's hook asks, forward by forward.

    Args:
        layer: Index of the target layer, from 0 on; the hook reads it.
        multiplier: Factor that the layer applies to its attention output.
        readings: The pairs of pool and span that are needed.
        image_tokens: Ids of image placeholders, for spans.
    """

    def __init__(
        self, layer: int, multiplier: float, readings: Sequence[tuple[str, str]], image_tokens: Sequence[int]
    ) -> None:
        self.layer = layer
        self.multiplier = multiplier
        self.image_tokens = list(image_tokens)
        self.pooled: dict[tuple[str, str], Tensor] = dict.fromkeys(readings, torch.empty(0))
        self.fired = False
        self._weights: dict[str, Tensor | None] = {}
        self._positions = 0
        self._constants: StepConstants | None = None

    def read(self, input_ids: Tensor, attention_mask: Tensor | None, positions: int) -> None:
        """Plan a forward over whole prompts: pool its updates and steer nothing."""
        self.fired = False
        self._constants, self._positions = None, positions
        self._weights = {}
        for _, span in self.pooled:
            weights = attention_mask
            if span != "prompt":
                if input_ids.shape[1] != positions or not self.image_tokens:
                    raise ValueError(
                        f"span={span!r} needs a model whose prompt marks image positions by a token that its config "
                        "names. Use span='prompt'."
                    )
                is_image = torch.isin(input_ids, torch.tensor(self.image_tokens, device=input_ids.device))
                counts = is_image if span == "image" else ~is_image
                weights = counts if weights is None else (weights > 0) & counts
            self._weights[span] = weights

    def spread(self, settings: Sequence[Setting], first_token: bool = False) -> None:
        """Plan steered forwards: each picture has one row for each setting, pictures outermost.

        Args:
            settings: The rows' settings.
            first_token: Whether the last prompt position is forwarded, which only some settings steer.
        """
        self.fired = False
        self._weights = {}
        cards = torch.stack([unit(self.pooled[setting.reading]) for setting in settings], dim=1)
        pictures = cards.shape[0]
        rows = row_tensors(settings, cards.device)
        if first_token:
            steered = torch.tensor([setting.steer_first_token for setting in settings], device=cards.device)
            rows["alpha_max"] = torch.where(steered, rows["alpha_max"], 0.0)
        constants = step_constants(
            cards.flatten(0, 1), **{name: column.repeat(pictures) for name, column in rows.items()}
        )
        self._constants = constants._replace(push=constants.push / self.multiplier)

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the rows only."""
        if self._constants is not None:
            self._constants = StepConstants(*(value[rows.to(value.device)] for value in self._constants))

    def steer(self, h: Tensor, update: Tensor) -> Tensor:
        """Read the prompt's updates, or steer those of every row."""
        self.fired = True
        if h.device != update.device:
            h = h.to(update.device)
        with torch.autocast(update.device.type, enabled=False):
            if self._constants is not None:
                return steer_step(h, update, self._constants)
            if update.shape[1] != self._positions:
                raise ValueError(
                    f"the prompt has {self._positions} positions but the target layer sees {update.shape[1]}: this "
                    "model changes the length of the prompt inside its forward and cannot be calibrated"
                )
            for pool, span in self.pooled:
                self.pooled[pool, span] = pool_updates(update, self._weights[span], pool)
            return update
