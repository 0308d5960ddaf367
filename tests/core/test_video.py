"""Video frames in a prompt: steered like images, exactly as the slow reference steers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rudder_hf import RudderConfig, attach
from tests.support.reference import Reference, reference_generate
from tests.support.zoo import FAMILIES
from tests.support.zoo.batches import left_pad, random_pixels, text_ids

VIDEO, START, END = 4, 5, 6
FRAMES = 2


def qwen_video(model: Any) -> dict[str, Any]:
    """Two pairs of frames of 4 by 4 patches, merged to eight placeholders, then an image of four."""
    words = text_ids(3, 6)
    batch: dict[str, Any] = dict(left_pad([[*words[:2], START, *[VIDEO] * 8, END, *words[2:]]]))
    batch["mm_token_type_ids"] = 2 * (batch["input_ids"] == VIDEO).long()
    batch["pixel_values_videos"] = random_pixels(5, (FRAMES * 16, 3 * 2 * 4 * 4))
    batch["video_grid_thw"] = torch.tensor([[FRAMES, 4, 4]])
    return batch


def llava_video(model: Any) -> dict[str, Any]:
    """Each frame as its patches and the class token."""
    words = text_ids(3, 6)
    batch: dict[str, Any] = dict(left_pad([[*words[:2], *[VIDEO] * (5 * FRAMES), *words[2:]]]))
    batch["pixel_values_videos"] = random_pixels(5, (1, FRAMES, 3, 16, 16))
    return batch


@pytest.mark.parametrize(
    ("name", "inputs"), [("qwen2_5_vl", qwen_video), ("qwen2_vl", qwen_video), ("video_llava", llava_video)]
)
def test_video_prompts_equal_reference(name: str, inputs: Callable[[Any], dict[str, Any]]) -> None:
    family = FAMILIES[name]
    model = family.build()
    batch = inputs(model)
    options: dict[str, Any] = {"max_new_tokens": 6}
    expected = reference_generate(family, model, batch, Reference(layer=1, alpha_max=6.0), **options)
    options |= {"return_dict_in_generate": True, "output_scores": True}
    with attach(model, RudderConfig(layer=1, alpha_max=6.0)):
        out = model.generate(**batch, **options)
        plain = model.generate(**batch, **options, rudder=False)
        image_span = model.generate(**batch, **options, rudder={"span": "image"})
    assert out.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in zip(out.scores, expected.scores, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-3, atol=5e-3)
    assert not torch.allclose(out.scores[1], plain.scores[1], atol=1e-2)
    reference = Reference(layer=1, alpha_max=6.0, span="image", image_tokens=(VIDEO,))
    expected = reference_generate(family, model, batch, reference, max_new_tokens=6)
    assert image_span.sequences.tolist() == expected.sequences.tolist()
