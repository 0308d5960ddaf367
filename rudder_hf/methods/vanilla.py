"""Vanilla: the model as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from .base import Generate, Intervention, refuse_steered


@dataclass(frozen=True)
class Vanilla(Intervention):
    """The model's own `generate`, untouched: what every method is compared with."""

    name = "vanilla"

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Intervention.applied`."""
        refuse_steered(model)

        def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
            return model.generate(*args, **kwargs)  # type: ignore[operator]

        yield generate
