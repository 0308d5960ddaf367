"""`SettingsState`: steers every row of a batch by a setting of its own, from one reading of the prompt.

It takes the place of `GenerationState` in the layer's hooks. While the prompt is read it pools once for each way of
pooling that any setting asks for; then there is one row for each image and setting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.steering import StepConstants, pool_updates, steer_step, step_constants, unit
from .settings import Setting


class SettingsState:
    """What the target layer's hook asks, forward by forward.

    Args:
        layer: Index of the target layer, from 0 on; the hook reads it.
        multiplier: Factor that the layer applies to its attention output.
        settings: The settings whose pools and spans are needed.
        image_tokens: Ids of image placeholders, for spans.
    """

    def __init__(
        self, layer: int, multiplier: float, settings: Sequence[Setting], image_tokens: Sequence[int]
    ) -> None:
        self.layer = layer
        self.multiplier = multiplier
        self.image_tokens = list(image_tokens)
        self.pooled: dict[tuple[str, str], Tensor] = {setting.reading: torch.empty(0) for setting in settings}
        self.fired = False
        self._weights: dict[str, Tensor | None] = {}
        self._positions = 0
        self._constants: StepConstants | None = None

    def read(self, input_ids: Tensor, attention_mask: Tensor | None, positions: int) -> None:
        """Plan a forward over whole prompts: pool its updates and steer nothing."""
        self._constants, self._positions = None, positions
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
        """Plan steered forwards: each image has one row for each setting, images outermost.

        Args:
            settings: The rows' settings.
            first_token: Whether the last prompt position is forwarded, which only some settings steer.
        """
        self._weights = {}
        rows = []
        for setting in settings:
            steered = setting.steer_first_token or not first_token
            # Mode "add" is the gate that is always open, so that both modes can be rows of one batch.
            gate = (1.0, 1.0) if setting.mode == "add" else (setting.g_min, setting.g_max)
            cap = torch.inf if setting.norm_cap is None else setting.norm_cap
            rows.append((setting.alpha_max if steered else 0.0, setting.k, setting.c, *gate, cap))
        cards = torch.stack([unit(self.pooled[setting.reading]) for setting in settings], dim=1)
        columns = torch.tensor(rows, dtype=torch.float32, device=cards.device).repeat(cards.shape[0], 1).T
        constants = step_constants(cards.flatten(0, 1), *columns.contiguous())
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
