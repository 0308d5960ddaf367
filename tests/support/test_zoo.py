"""The zoo itself: every tiny model builds, looks at its image and says various things."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.zoo import FAMILIES, Row

NEW = 12


def is_pixels(value: Any) -> bool:
    """Whether an input is image content rather than ids, masks or sizes."""
    if isinstance(value, (list, tuple)):
        return all(is_pixels(entry) for entry in value)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@pytest.mark.parametrize("name", FAMILIES)
def test_output_is_varied_and_the_image_matters(name: str) -> None:
    """Greedy search does not repeat one token for ever; other pixels give other logits for the first token."""
    family = FAMILIES[name]
    model = family.build()
    inputs, others = (family.inputs(model, [Row(seed, words=7)]) for seed in (1, 2))
    assert any(map(is_pixels, others.values()))
    mixed = {**inputs, **{name: value for name, value in others.items() if is_pixels(value)}}
    options = {"max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
    output, other = model.generate(**inputs, **options), model.generate(**mixed, **options)
    assert len(output.logits) == NEW
    assert len(set(output.sequences[0, -NEW:].tolist())) >= 3
    difference = output.logits[0] - other.logits[0]
    assert difference[difference.isfinite()].abs().max() > 0.05
