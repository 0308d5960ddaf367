"""Control: the CARD of another image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.configuration import RudderConfig
from ..core.handle import attach
from .base import check_number
from .controls import Context, RudderControl
from .randomness import sample_generator

# Above this cosine a donor is taken for the sample's own CARD, up to the rounding of batches.
_OWN = 0.99999


@dataclass(frozen=True)
class ShuffledCard(RudderControl):
    """RUDDER with the CARD of another image.

    With `donors`, a bank of CARDs made by `collect_cards`, each sample draws one of them by `seed` and its id, and the
    next one if that is its own: the result does not depend on the batch. Without donors a prompt takes the CARD of the
    next prompt of its batch that has an image (the last one takes the first's), so that batches have to be the same
    for results to be.

    Attributes:
        donors: CARDs of other images, for the same prompt, model and settings, (number, hidden size).
        seed: Of the draw.
    """

    name = "rudder-shuffled"

    donors: Tensor | None = field(default=None, compare=False, repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        check_number(self, "seed", 0, 2**63, whole=True)
        if self.donors is not None and (not isinstance(self.donors, Tensor) or self.donors.dim() != 2):
            raise ValueError(f"{self.name}: `donors` has to be a tensor of shape (number, hidden size).")
        super().__post_init__()

    def direction(self, card: Tensor, with_image: Sequence[bool], context: Context) -> Tensor:
        """See `RudderControl.direction`."""
        rows_each = len(card) // len(with_image)
        own = card[::rows_each]
        other = self._next_prompts(own, with_image) if self.donors is None else self._drawn(own, context)
        return other.repeat_interleave(rows_each, dim=0)

    def _next_prompts(self, own: Tensor, with_image: Sequence[bool]) -> Tensor:
        pictured = [prompt for prompt, has_image in enumerate(with_image) if has_image]
        if len(pictured) < 2:
            raise ValueError(
                f"{self.name} takes the CARD of another prompt of the batch, but the batch has {len(pictured)} with "
                "an image. Pass donors=collect_cards(model, config, batches), or batches of two or more."
            )
        following = dict(zip(pictured, pictured[1:] + pictured[:1], strict=True))
        return own[[following.get(prompt, prompt) for prompt in range(len(own))]]

    def _drawn(self, own: Tensor, names: Sequence[str] | None) -> Tensor:
        assert self.donors is not None
        donors = self.donors.to(own)
        if donors.shape[1] != own.shape[1]:
            raise ValueError(
                f"{self.name}: donors have a hidden size of {donors.shape[1]}, but the model's is {own.shape[1]}."
            )
        chosen = []
        for prompt, card in enumerate(own):
            name = f"row {prompt}" if names is None else names[prompt]
            start = int(torch.randint(len(donors), (), generator=sample_generator(self.seed, name)))
            order = [(start + step) % len(donors) for step in range(len(donors))]
            strangers = [donor for donor in order if float(donors[donor] @ card) < _OWN]
            if not strangers:
                raise ValueError(f"{self.name}: every donor is the sample's own CARD. Collect more.")
            chosen.append(donors[strangers[0]])
        return torch.stack(chosen)


def collect_cards(model: nn.Module, config: RudderConfig, batches: Iterable[Mapping[str, Any]]) -> Tensor:
    """A bank of CARDs: those that RUDDER reads from prompts, one for each, without steering by them.

    Args:
        model: The model.
        config: Settings: layer, pool and span matter.
        batches: Inputs as for `generate`.

    Returns:
        (prompts, hidden size) in float32, on the CPU.
    """
    cards = []
    with attach(model, config) as handle:
        for inputs in batches:
            options = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "return_dict_in_generate": True}
            output = handle.backbone.model.generate(**inputs, **options, rudder=False, output_rudder=True)  # type: ignore[operator]
            cards.append(output.rudder.card.float().cpu())
    return torch.cat(cards) if cards else torch.empty(0, 0)
