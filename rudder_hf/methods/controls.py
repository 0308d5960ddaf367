"""Control experiments: RUDDER, or the image-value contrast, with something else in place of what it adds.

A steering result means little unless a push of the same strength along a direction without this image's evidence does
less. Layer, strength, gate and answer span of a control are those of the settings that it is given. Controls of the
contrast add something else than the deviations of this image's values from their mean, as often and as strongly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from ..core.attach import attach
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle
from .base import Inputs, Sources, check_sample_ids, number, sample_generator, sample_normal
from .branches import SINGLE
from .contrast import Contrast, ContrastSettings
from .rudder import Attached, RudderBeta

Replacement = Callable[..., Any]
"""A `CardMap` or a `ContrastMap` of `core`."""
Donor = tuple[Tensor, ...]
"""Deviations of an image's values from their mean, (heads, positions, head size), for each layer from the first on."""

_REPLACEMENT: ContextVar[Replacement] = ContextVar("rudder_control")
# Above this cosine a donor counts as the sample's own, up to the rounding of batches.
_ALIKE = 0.99999
_DONORS_KEPT = 4  # images that are kept for the control of the contrast, with their values in every layer


def _replaced(*args: Any) -> Any:
    return _REPLACEMENT.get()(*args)


@dataclass(frozen=True)
class Control(Attached):
    """A method with something else in place of what it adds: subclasses define `_other`."""

    searched: ClassVar[Sequence[Mapping[str, Any]]] = ()
    replaces: ClassVar[str]  # the attribute of the handle that replaces it

    @abstractmethod
    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        """What a sample gets instead of its own; the first dimension has one row for each that shares it (beams).

        Args:
            own: Of a CARD (1, hidden size), of the deviations of an image (rows, heads, positions, head size).
            sample_id: The sample's id.
            place: Of deviations the number of the image within the sample, and the layer.
        """

    @abstractmethod
    def _replacement(self, sample_ids: Sequence[str]) -> Replacement:
        """What replaces it in one call of `generate`."""

    def _generate(
        self, handle: SteeringHandle, /, *args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        ids = check_sample_ids(sample_ids, Call(handle.backbone.model, args, kwargs).batch)
        setattr(handle, self.replaces, _replaced)
        token = _REPLACEMENT.set(self._replacement(ids))
        try:
            # A compiled forward would keep the replacement of the call that it was compiled in.
            return super()._generate(handle, *args, **{**kwargs, "disable_compile": True})
        finally:
            _REPLACEMENT.reset(token)


@dataclass(frozen=True)
class RudderControl(Control, RudderBeta):
    """RUDDER with another direction than CARD."""

    replaces = "card_map"
    searched_strengths = ()

    mode: str = "beta"  # "beta" or "add": which RUDDER this is the control of

    def _replacement(self, sample_ids: Sequence[str]) -> Replacement:
        def changed(card: Tensor, with_image: Sequence[bool]) -> Tensor:
            each = len(card) // len(with_image)  # a prompt's rows lie together and share theirs
            others = map(self._other, card[::each, None], sample_ids)
            return torch.cat(list(others)).to(card).repeat_interleave(each, dim=0)

        return changed


@dataclass(frozen=True)
class ContrastControl(Control, Contrast):
    """The contrast with something else than the deviations of the image's values."""

    replaces = "contrast_map"

    def _replacement(self, sample_ids: Sequence[str]) -> Replacement:
        def changed(deviations: list[Tensor], prompts: list[int], layer: int) -> list[Tensor]:
            return [
                self._other(own, sample_ids[prompt], prompts[:index].count(prompt), layer)
                for index, (own, prompt) in enumerate(zip(deviations, prompts, strict=True))
            ]

        return changed


@dataclass(frozen=True)
class _Random(Control):
    """As long as the own one, in a direction that is drawn for each sample."""

    seed: int = number(0, 0, 2**63)  # of the directions

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        drawn = sample_normal(own.shape[1:], self.seed, sample_id, *place)
        direction = (drawn / drawn.norm(dim=-1, keepdim=True)).to(own)
        longer: Tensor = direction * torch.linalg.vector_norm(own, dim=-1, keepdim=True)
        return longer


@dataclass(frozen=True)
class RandomDirection(_Random, RudderControl):
    """RUDDER with a direction drawn uniformly from the sphere, as long as CARD.

    Each sample has its own, by `seed` and its id; without `sample_ids` by `seed` and its place in the batch.
    """

    name = "rudder-random"


@dataclass(frozen=True)
class RandomContrast(_Random, ContrastControl):
    """Each position gets a random vector as long as its deviation, drawn by `seed` and the sample's id."""

    name = "contrast-random"


@dataclass(frozen=True)
class NegatedCard(RudderControl):
    """RUDDER with -CARD. If CARD is evidence, this makes hallucination worse; the gate sees the negated one too."""

    name = "rudder-negated"

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        return -own


@dataclass(frozen=True)
class NegatedContrast(ContrastControl):
    """The values are moved towards their mean. If the deviations are evidence, this makes hallucination worse."""

    name = "contrast-negated"

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        return -own


@dataclass(frozen=True)
class _Borrowed(Control):
    """What other images have in its place: `donors`, which `collect` reads from prompts with other images."""

    donors: Any = field(default=None, compare=False, repr=False)

    @classmethod
    @abstractmethod
    def collect(cls, model: nn.Module, config: RudderConfig, batches: Iterable[Inputs]) -> Any:
        """Read `donors` from inputs of `generate`."""

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """See `Method.for_model`: `donors` are read from the prompts, if there are some."""
        made = super().for_model(model, sources, **settings)
        if made.donors is not None or sources.prompts is None:
            return made
        return replace(made, donors=cls.collect(model, made.rudder_config(), sources.prompts()))

    def _generate(self, handle: SteeringHandle, /, *args: Any, **kwargs: Any) -> Any:
        if self.donors is None:
            raise ValueError(
                f"{self.name} needs other images: pass donors={type(self).__name__}.collect(model, config, batches) "
                "with inputs of `generate` for a few of them."
            )
        return super()._generate(handle, *args, **kwargs)


@dataclass(frozen=True)
class DonorControl(_Borrowed, RudderControl):
    """RUDDER with a direction from other images: `donors` are their CARDs, (number, hidden size)."""

    @classmethod
    def collect(cls, model: nn.Module, config: RudderConfig, batches: Iterable[Inputs]) -> Tensor:
        """Read the CARD of each prompt, without steering by it: (prompts, hidden size) in float32, on the CPU."""
        cards = []
        options = SINGLE | {"return_dict_in_generate": True, "rudder": False, "output_rudder": True}
        with attach(model, config) as handle:
            for inputs in batches:
                output = handle.backbone.model.generate(**inputs, **options)  # type: ignore[operator]
                cards.append(output.rudder.card.float().cpu())
        return torch.cat(cards) if cards else torch.empty(0, 0)

    def _others(self, own: Tensor) -> Tensor:
        """The donors without the sample's own CARD."""
        bank = self.donors
        if not isinstance(bank, Tensor) or bank.dim() != 2 or bank.shape[1] != own.shape[1]:
            given = tuple(bank.shape) if isinstance(bank, Tensor) else type(bank).__name__
            raise ValueError(
                f"{self.name}: `donors` is {given}, but has to be a tensor of shape (number, {own.shape[1]}): the "
                "model's hidden size."
            )
        bank = bank.to(own)
        bank = bank[bank @ own[0] < _ALIKE]
        if not len(bank):
            raise ValueError(f"{self.name}: there is no donor but the sample's own CARD. Collect more.")
        return bank


@dataclass(frozen=True)
class ShuffledCard(DonorControl):
    """RUDDER with the CARD of another image: each sample draws one of the donors by `seed` and its id."""

    name = "rudder-shuffled"

    seed: int = number(0, 0, 2**63)  # of the draw

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        bank = self._others(own)
        return bank[torch.randint(len(bank), (1,), generator=sample_generator(self.seed, sample_id))]


@dataclass(frozen=True)
class ShuffledContrastCard(ContrastSettings, ShuffledCard):
    """RUDDER-Beta with another image's CARD, and the contrast as it is: the control of a push beside a contrast."""

    name = "rudder-shuffled+contrast"


@dataclass(frozen=True)
class MeanCard(DonorControl):
    """RUDDER with the mean CARD of other images: one direction for all, what CARDs have in common.

    What is particular to single images cancels out in it, so that it has less chance in it than one other image's
    CARD.
    """

    name = "rudder-mean"

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        return normalize(self._others(own).mean(dim=0, keepdim=True), dim=-1)


@dataclass(frozen=True)
class ShuffledContrast(_Borrowed, ContrastControl):
    """The deviations of another image's values, position by position.

    Each sample draws one of `donors` (for the same model and `contrast_first_layer`) by `seed` and its id, and the
    next one if that is its own image.
    """

    name = "contrast-shuffled"

    seed: int = number(0, 0, 2**63)  # of the draw

    @classmethod
    def collect(cls, model: nn.Module, config: RudderConfig, batches: Iterable[Inputs]) -> tuple[Donor, ...]:
        """Read the deviations of a few images, the first of each prompt."""
        found: list[list[Tensor]] = []

        def keep(deviations: list[Tensor], prompts: list[int], layer: int) -> list[Tensor]:
            for place, own in enumerate(deviations):
                if prompts.index(prompts[place]) == place:
                    batch.setdefault(prompts[place], []).append(own[0].cpu())
            return [torch.zeros_like(own) for own in deviations]

        options = {"max_new_tokens": config.contrast_after + 1, "do_sample": False, "num_beams": 1}
        with attach(model, config) as handle:
            handle.contrast_map = keep
            for inputs in batches:
                if len(found) >= _DONORS_KEPT:
                    break
                batch: dict[int, list[Tensor]] = {}
                handle.backbone.model.generate(**inputs, **options)  # type: ignore[operator]
                found += batch.values()
        return tuple(tuple(donor) for donor in found[:_DONORS_KEPT])

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; of the donors only their number."""
        return super().settings() | {"donors": None if self.donors is None else len(self.donors)}

    def _other(self, own: Tensor, sample_id: str, *place: int) -> Tensor:
        count, layer = len(self.donors), place[-1] - self.contrast_first_layer
        start = int(torch.randint(count, (), generator=sample_generator(self.seed, sample_id)))
        for step in range(count):
            donor: Tensor = self.donors[(start + step) % count][layer].to(own)
            # Images may differ in their number of positions.
            if donor.shape != own.shape[1:] or cosine_similarity(donor.flatten(), own[0].flatten(), dim=0) < _ALIKE:
                return donor[:, torch.arange(own.shape[2]) % donor.shape[1]].expand_as(own)
        raise ValueError(f"{self.name}: every donor is the sample's own image. Collect more.")
