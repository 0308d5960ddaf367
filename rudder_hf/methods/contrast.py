"""The image-value contrast (`core.contrast`), which is not in the paper: alone, with RUDDER-Beta, and its controls.

The controls add something else than this image's deviations from its mean, as often and as strongly. If they do as
much good, the effect is not due to what the image shows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ..core.attach import attach
from ..core.call import Call
from ..core.configuration import RudderConfig
from ..core.contrast import ContrastMap
from ..core.handle import SteeringHandle
from ..core.settings import CONTRAST_DEFAULTS
from .base import (
    Inputs,
    Sources,
    check_sample_ids,
    grid,
    number,
    sample_generator,
    sample_normal,
)
from .controls import ShuffledCard
from .rudder import Attached, RudderBeta, absolute_strength

_CONTRAST_MAP: ContextVar[ContrastMap] = ContextVar("rudder_contrast_control")

# Above this cosine a donor counts as the sample's own image, up to the rounding of batches.
_OWN = 0.99999
# Images that are kept for the control, with their values in every layer.
_DONORS = 4

Donor = tuple[Tensor, ...]
"""Deviations of an image's values from their mean, (heads, positions, head size), for each layer from the first on."""


@dataclass(frozen=True)
class ContrastSettings:
    """What the methods with a contrast have in common.

    Attributes:
        contrast: lambda.
        contrast_first_layer: First decoder layer whose image values are edited.
        contrast_after: Answer tokens before the edit.
    """

    contrast: float = number(0.6, 0.0, 100.0)
    contrast_first_layer: int = number(CONTRAST_DEFAULTS["contrast_first_layer"], 0, 10_000)
    contrast_after: int = number(CONTRAST_DEFAULTS["contrast_after"], 1, 1_000_000)


@dataclass(frozen=True)
class Contrast(ContrastSettings, Attached):
    """The image-value contrast alone, without RUDDER's push."""

    name = "contrast"
    searched: ClassVar[Sequence[Mapping[str, Any]]] = grid(contrast=(0.2, 0.4, 0.6, 0.8), contrast_after=(1, 8))

    def rudder_config(self) -> RudderConfig:
        """The settings as a `RudderConfig`; the layer only carries hooks that do nothing."""
        return RudderConfig(layer=-1, alpha_max=0.0, **{name: getattr(self, name) for name in CONTRAST_DEFAULTS})


@dataclass(frozen=True)
class RudderContrast(ContrastSettings, RudderBeta):
    """RUDDER-Beta with the image-value contrast."""

    name = "rudder-beta+contrast"

    @classmethod
    def search_space(cls, hidden_norms: Mapping[int, float]) -> list[dict[str, Any]]:
        """See `Method.search_space`: gentler pushes than RUDDER's alone."""
        return [
            {"config": None, "layer": layer, "alpha_max": absolute_strength(share, norm), "contrast": strength}
            for share in (0.1, 0.2)
            for strength in (0.4, 0.8)
            for layer, norm in hidden_norms.items()
        ]


@dataclass(frozen=True)
class ShuffledContrastCard(ContrastSettings, ShuffledCard):
    """RUDDER-Beta with another image's CARD, and the contrast as it is: the control of a push beside a contrast."""

    name = "rudder-shuffled+contrast"


@dataclass(frozen=True)
class ContrastControl(Contrast):
    """The contrast with something else than the deviations of the image's values."""

    searched = ()

    @abstractmethod
    def contrast_map(self, sample_ids: Sequence[str]) -> ContrastMap:
        """What replaces the deviations in one call of `generate`."""

    def _generate(
        self, handle: SteeringHandle, /, *args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        handle.contrast_map = _replaced
        batch = Call(handle.backbone.model, args, kwargs).batch
        token = _CONTRAST_MAP.set(self.contrast_map(check_sample_ids(sample_ids, batch)))
        try:
            return super()._generate(handle, *args, **kwargs)
        finally:
            _CONTRAST_MAP.reset(token)


def _replaced(deviations: list[Tensor], prompts: list[int], layer: int) -> list[Tensor]:
    return _CONTRAST_MAP.get()(deviations, prompts, layer)


@dataclass(frozen=True)
class NegatedContrast(ContrastControl):
    """The values are moved towards their mean. If the deviations are evidence, this makes hallucination worse."""

    name = "contrast-negated"

    def contrast_map(self, sample_ids: Sequence[str]) -> ContrastMap:
        """See `ContrastControl.contrast_map`."""
        return lambda deviations, prompts, layer: [-deviation for deviation in deviations]


@dataclass(frozen=True)
class RandomContrast(ContrastControl):
    """Each position gets a random vector as long as its deviation, drawn by `seed` and the sample's id."""

    name = "contrast-random"

    seed: int = number(0, 0, 2**63)

    def contrast_map(self, sample_ids: Sequence[str]) -> ContrastMap:
        """See `ContrastControl.contrast_map`."""

        def draw(deviations: list[Tensor], prompts: list[int], layer: int) -> list[Tensor]:
            found = []
            for place, (own, prompt) in enumerate(zip(deviations, prompts, strict=True)):
                image = prompts[:place].count(prompt)
                # The rows of a prompt (beams, return sequences) share theirs.
                drawn = sample_normal(own.shape[1:], self.seed, sample_ids[prompt], image, layer).to(own)
                found.append(drawn / drawn.norm(dim=-1, keepdim=True) * own.norm(dim=-1, keepdim=True))
            return found

        return draw


@dataclass(frozen=True)
class ShuffledContrast(ContrastControl):
    """The deviations of another image's values, position by position.

    With `donors`, made by `collect_deviations`, each sample draws one by `seed` and its id, and the next one if that
    is its own image. Without, a prompt takes those of the next image of its batch (the last one takes the first's).

    Attributes:
        donors: Deviations of other images, for the same model and `contrast_first_layer`.
        seed: Of the draw.
    """

    name = "contrast-shuffled"

    donors: tuple[Donor, ...] | None = field(default=None, compare=False, repr=False)
    seed: int = number(0, 0, 2**63)

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """See `Method.for_model`: `donors` are images of the prompts, if there are some."""
        made = cls(**settings)
        if made.donors is not None or sources.prompts is None:
            return made
        return replace(made, donors=collect_deviations(model, made.rudder_config(), sources.prompts()))

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; of the donors only their number."""
        return super().settings() | {"donors": None if self.donors is None else len(self.donors)}

    def contrast_map(self, sample_ids: Sequence[str]) -> ContrastMap:
        """See `ContrastControl.contrast_map`."""

        def borrow(deviations: list[Tensor], prompts: list[int], layer: int) -> list[Tensor]:
            if self.donors is None and len(deviations) < 2:
                raise ValueError(
                    f"{self.name} takes the values of another image of the batch, but the batch has "
                    f"{len(deviations)}. Pass donors=collect_deviations(model, config, batches), or larger batches."
                )
            found = []
            for place, (own, prompt) in enumerate(zip(deviations, prompts, strict=True)):
                if self.donors is None:
                    other = deviations[(place + 1) % len(deviations)][0]
                else:
                    other = self._drawn(own[0], sample_ids[prompt], layer - self.contrast_first_layer)
                # Images may differ in their number of positions.
                found.append(other[:, torch.arange(own.shape[2]) % other.shape[1]].to(own).expand_as(own))
            return found

        return borrow

    def _drawn(self, own: Tensor, sample_id: str, place: int) -> Tensor:
        """The deviations of a donor in one layer."""
        assert self.donors is not None
        count = len(self.donors)
        start = int(torch.randint(count, (), generator=sample_generator(self.seed, sample_id)))
        for other in (self.donors[(start + step) % count][place].to(own) for step in range(count)):
            same_shape = other.shape == own.shape
            if not same_shape or cosine_similarity(other.flatten(), own.flatten(), dim=0) < _OWN:
                return other
        raise ValueError(f"{self.name}: every donor is the sample's own image. Collect more.")


def collect_deviations(model: nn.Module, config: RudderConfig, batches: Iterable[Inputs]) -> tuple[Donor, ...]:
    """Deviations of the values of a few images, the first of each prompt, for `ShuffledContrast`."""
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
            if len(found) >= _DONORS:
                break
            batch: dict[int, list[Tensor]] = {}
            handle.backbone.model.generate(**inputs, **options)  # type: ignore[operator]
            found += batch.values()
    return tuple(tuple(donor) for donor in found[:_DONORS])
