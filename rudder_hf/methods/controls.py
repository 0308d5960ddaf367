"""Control experiments: RUDDER as it is, but with another direction in place of CARD.

A steering result means little unless a push of the same strength along a direction without this image's evidence does
less. Layer, strength, gate and answer span of a control are those of the RUDDER settings it is given.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..core.attach import attach
from ..core.backbones import attention_update
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle
from ..core.state import CardMap
from ..core.steering import card as card_of
from .base import Inputs, Sources, check_sample_ids, number, sample_generator, sample_normal
from .branches import SINGLE, Branch, hidden_states_of, without_image
from .rudder import RudderBeta

_CARD_MAP: ContextVar[CardMap] = ContextVar("rudder_control")

# Above this cosine a donor counts as the sample's own CARD, up to the rounding of batches.
_OWN = 0.99999
_DONORS = 4


@dataclass(frozen=True)
class RudderControl(RudderBeta):
    """RUDDER with another direction than CARD.

    Attributes:
        mode: "beta" or "add": which RUDDER this is the control of.
    """

    searched_strengths = ()

    mode: str = "beta"

    @abstractmethod
    def card_map(self, handle: SteeringHandle, call: Call, sample_ids: Sequence[str]) -> CardMap:
        """What replaces CARD in one call of `generate`.

        The function takes the CARD of each prompt, (prompts, hidden size), and which prompts have an image.
        """

    def _generate(
        self, handle: SteeringHandle, /, *args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        call = Call(handle.backbone.model, args, kwargs)
        handle.card_map = _replaced
        token = _CARD_MAP.set(self.card_map(handle, call, check_sample_ids(sample_ids, call.batch)))
        try:
            # A compiled forward would keep the direction of the call that it was compiled in.
            return super()._generate(handle, *args, **{**kwargs, "disable_compile": True})
        finally:
            _CARD_MAP.reset(token)


def _replaced(card: Tensor, with_image: Sequence[bool]) -> Tensor:
    """The direction for each row; the rows of a prompt (beams, return sequences) lie together and share theirs."""
    rows_each = len(card) // len(with_image)
    return _CARD_MAP.get()(card[::rows_each], with_image).to(card).repeat_interleave(rows_each, dim=0)


@dataclass(frozen=True)
class RandomDirection(RudderControl):
    """RUDDER with a direction drawn uniformly from the sphere, as long as CARD.

    Each sample has its own, by `seed` and its id; without `sample_ids` by `seed` and its place in the batch.

    Attributes:
        seed: Of the directions.
    """

    name = "rudder-random"

    seed: int = number(0, 0, 2**63)

    def card_map(self, handle: SteeringHandle, call: Call, sample_ids: Sequence[str]) -> CardMap:
        """See `RudderControl.card_map`."""

        def draw(card: Tensor, with_image: Sequence[bool]) -> Tensor:
            drawn = torch.stack([sample_normal(card.shape[1:], self.seed, name) for name in sample_ids])
            drawn = (drawn / drawn.norm(dim=-1, keepdim=True)).to(card)
            direction: Tensor = torch.linalg.vector_norm(card, dim=-1, keepdim=True) * drawn
            return direction

        return draw


@dataclass(frozen=True)
class DonorControl(RudderControl):
    """RUDDER with a direction from other images.

    It comes from `donors`, a bank of CARDs made by `collect_cards`, so that the result does not depend on the batch.
    Without them it comes from the other prompts of the batch, so that batches have to be the same for results to be.

    Attributes:
        donors: CARDs of other images, for the same prompt, model and settings, (number, hidden size).
    """

    donors: Tensor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        bank = self.donors
        if bank is not None and (not isinstance(bank, Tensor) or bank.dim() != 2 or not len(bank)):
            raise ValueError(f"{self.name}: `donors` has to be a tensor of shape (number, hidden size), not empty.")
        super().__post_init__()

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """See `Method.for_model`: `donors` are the CARDs of the prompts, if there are some."""
        made = super().for_model(model, sources, **settings)
        if made.donors is not None or sources.prompts is None:
            return made
        return replace(made, donors=collect_cards(model, made.rudder_config(), sources.prompts()))

    @classmethod
    def stand_ins(cls, layers: int, hidden_size: int) -> dict[str, Any]:
        """See `Method.stand_ins`."""
        return {"donors": normalize(sample_normal((_DONORS, hidden_size), 0), dim=-1)}

    @abstractmethod
    def from_batch(self, card: Tensor, shown: list[int]) -> Tensor:
        """The direction of each prompt in `shown`, those of the batch that have an image, from the others' CARDs."""

    @abstractmethod
    def from_donors(self, donors: Tensor, sample_id: str) -> Tensor:
        """The direction of a sample, from a bank that does not hold its own CARD."""

    def card_map(self, handle: SteeringHandle, call: Call, sample_ids: Sequence[str]) -> CardMap:
        """See `RudderControl.card_map`."""

        def from_others(card: Tensor, with_image: Sequence[bool]) -> Tensor:
            if self.donors is not None:
                bank = self._bank(card)
                others = [bank[bank @ own < _OWN] for own in card]
                if not all(map(len, others)):
                    raise ValueError(f"{self.name}: every donor is the sample's own CARD. Collect more.")
                return torch.stack([self.from_donors(*pair) for pair in zip(others, sample_ids, strict=True)])
            shown = [prompt for prompt, has_image in enumerate(with_image) if has_image]
            if len(shown) < 2:
                raise ValueError(
                    f"{self.name} needs CARDs of other images, but only {len(shown)} prompt(s) of the batch have an "
                    "image. Pass donors=collect_cards(model, config, batches), or batches of two or more."
                )
            replaced = card.clone()
            replaced[shown] = self.from_batch(card, shown)
            return replaced

        return from_others

    def _bank(self, card: Tensor) -> Tensor:
        assert self.donors is not None
        if self.donors.shape[1] != card.shape[1]:
            given, wanted = self.donors.shape[1], card.shape[1]
            raise ValueError(f"{self.name}: donors have a hidden size of {given}, but the model's is {wanted}.")
        return self.donors.to(card)


@dataclass(frozen=True)
class ShuffledCard(DonorControl):
    """RUDDER with the CARD of another image.

    Each sample draws one of the donors by `seed` and its id. Without donors a prompt takes the CARD of the next one of
    its batch that has an image, and the last one takes the first's.

    Attributes:
        seed: Of the draw.
    """

    name = "rudder-shuffled"

    seed: int = number(0, 0, 2**63)

    def from_batch(self, card: Tensor, shown: list[int]) -> Tensor:
        """See `DonorControl.from_batch`."""
        return card[shown[1:] + shown[:1]]

    def from_donors(self, donors: Tensor, sample_id: str) -> Tensor:
        """See `DonorControl.from_donors`."""
        return donors[torch.randint(len(donors), (), generator=sample_generator(self.seed, sample_id))]


@dataclass(frozen=True)
class MeanCard(DonorControl):
    """RUDDER with the mean CARD of other images: one direction for all, what CARDs have in common.

    What is particular to single images cancels out in it, so that it has less chance in it than one other image's
    CARD. Without donors the mean is over the other prompts of the batch that have an image.
    """

    name = "rudder-mean"

    def from_batch(self, card: Tensor, shown: list[int]) -> Tensor:
        """See `DonorControl.from_batch`."""
        return normalize(card[shown].sum(dim=0) - card[shown], dim=-1)

    def from_donors(self, donors: Tensor, sample_id: str) -> Tensor:
        """See `DonorControl.from_donors`."""
        return normalize(donors.mean(dim=0), dim=-1)


@dataclass(frozen=True)
class NegatedCard(RudderControl):
    """RUDDER with -CARD. If CARD is evidence, this makes hallucination worse; the gate sees the negated one too."""

    name = "rudder-negated"

    def card_map(self, handle: SteeringHandle, call: Call, sample_ids: Sequence[str]) -> CardMap:
        """See `RudderControl.card_map`."""
        return lambda card, with_image: -card


@dataclass(frozen=True)
class TextOnlyCard(RudderControl):
    """RUDDER with the CARD of the same prompt without its image: the language prior alone (the paper's Appendix).

    Not to be confused with `span="text"`, which pools text tokens that have attended to the image. Costs one prefill
    of the text.
    """

    name = "rudder-text-only"
    extra_prefills = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rudder_config().span == "image":
            raise ValueError(f"{self.name} has no image tokens to pool: use span='prompt' or 'text'.")

    def card_map(self, handle: SteeringHandle, call: Call, sample_ids: Sequence[str]) -> CardMap:
        """See `RudderControl.card_map`."""
        cards = text_only_cards(handle, call)
        return lambda card, with_image: cards


def text_only_cards(handle: SteeringHandle, call: Call) -> Tensor:
    """CARD of each prompt of a call without its image, (prompts, hidden size)."""
    text = without_image(handle.backbone.model, call)
    branch = Branch.prepare(handle.backbone.loop, {**text, **SINGLE})
    module = attention_update(handle.backbone.layers[handle.layer]).module
    (update,) = branch.read([module], lambda args, kwargs, output: hidden_states_of(output))
    with torch.no_grad():
        return card_of(update, text["attention_mask"], handle.config.pool)


def collect_cards(model: nn.Module, config: RudderConfig, batches: Iterable[Inputs]) -> Tensor:
    """A bank of CARDs: those that RUDDER reads from prompts, one for each, without steering by them.

    Args:
        model: The model.
        config: Settings: layer, pool and span matter.
        batches: Inputs of `generate`.

    Returns:
        (prompts, hidden size) in float32, on the CPU.
    """
    cards = []
    with attach(model, config) as handle:
        for inputs in batches:
            options = SINGLE | {"return_dict_in_generate": True, "rudder": False, "output_rudder": True}
            output = handle.backbone.model.generate(**inputs, **options)  # type: ignore[operator]
            cards.append(output.rudder.card.float().cpu())
    return torch.cat(cards) if cards else torch.empty(0, 0)
