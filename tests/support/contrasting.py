"""The image-value contrast by hand, and runs of the package to compare with it, in float64.

The reference knows nothing of the package: a hook on a stock model edits the cache before the first forward that reads
the n-th answer token, at positions that are counted from the prompt's ids.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rudder_hf import RudderConfig, attach
from tests.support.helpers import with_dtype
from tests.support.zoo import FAMILIES, Family, Row

NEW = 6
BATCH = (Row(1, 4), Row(2, 9), Row(3, 6))
ALONE = (Row(2, 9),)
STRENGTH = 0.7


@functools.cache
def built(name: str) -> Any:
    """A float64 model; Kosmos-2 fills its masks with float32's lowest number and keeps that dtype."""
    model = FAMILIES[name].build()
    model.set_experts_implementation("eager")  # the fast kernels for experts do not know float64
    return model if name == "kosmos-2" else model.double()


def inputs_of(name: str, rows: tuple[Row, ...]) -> dict[str, Any]:
    model = built(name)
    return with_dtype(FAMILIES[name].inputs(model, rows), next(model.parameters()).dtype)


def image_tokens(model: Any) -> list[int]:
    names = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
    return [token for key in names if isinstance(token := getattr(model.config, key, None), int)]


def images_by_hand(model: Any, inputs: dict[str, Any], per_run: bool = False) -> list[list[list[int]]]:
    """For each prompt the positions of its images: all image tokens, or each run of them."""
    mask = inputs.get("image_embeds_position_mask")
    flags = torch.isin(inputs["input_ids"], torch.tensor(image_tokens(model))) if mask is None else mask.bool()
    found = []
    for row in flags.tolist():
        positions = [position for position, is_image in enumerate(row) if is_image]
        runs: list[list[int]] = []
        for position in positions:
            if runs and (runs[-1][-1] == position - 1 or not per_run):
                runs[-1].append(position)
            else:
                runs.append([position])
        found.append(runs)
    return found


def edit_by_hand(cache: Any, images: list[list[list[int]]], strengths: list[float], first_layer: int) -> None:
    """The definition, typed position by position."""
    for layer in cache.layers[first_layer:]:
        seen = layer.cumulative_length if layer.is_sliding else layer.values.shape[2]
        gone = max(seen - layer.values.shape[2], 0)
        each = layer.values.shape[0] // len(images)
        for row in range(layer.values.shape[0]):
            for image in images[row // each]:
                if image[-1] < gone:
                    continue
                mean = sum(layer.values[row, :, i - gone].clone() for i in image) / len(image)
                for i in image:
                    value = layer.values[row, :, i - gone]
                    layer.values[row, :, i - gone] = value + strengths[row // each] * (value - mean)


@contextmanager
def edited(
    name: str, images: list[list[list[int]]], strengths: list[float], after: int, first_layer: int, length: int
) -> Iterator[Any]:
    """A stock model whose cache is edited by hand before the forward that reads the n-th answer token."""
    model = built(name)
    loop: nn.Module = model.get_submodule(FAMILIES[name].loop)
    done: list[int] = []

    def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        if not done and cache is not None and int(cache.get_seq_length()) == length + after - 1:
            edit_by_hand(cache, images, strengths, first_layer)
            done.append(after)

    hook = loop.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield model
    finally:
        hook.remove()
    assert done


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    defaults = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    return model.generate(**inputs, **{**defaults, **options})


def settings(model: Any, family: Family, **changes: Any) -> RudderConfig:
    count = len(model.get_submodule(family.layers))
    usable = [index for index in range(count) if index not in family.no_attention_layers]
    return RudderConfig(
        **{"layer": usable[-1], "alpha_max": 0.0, "contrast": STRENGTH, "contrast_after": 1, **changes}
    )


def contrasted(name: str, rows: tuple[Row, ...], changes: dict[str, Any] | None = None, **options: Any) -> Any:
    model = built(name)
    with attach(model, settings(model, FAMILIES[name], **(changes or {}))):
        return generate(model, inputs_of(name, rows), **options)


def by_hand(
    name: str,
    rows: tuple[Row, ...],
    strengths: list[float] | None = None,
    *,
    after: int = 1,
    first_layer: int = 2,
    per_run: bool = False,
    **options: Any,
) -> Any:
    inputs = inputs_of(name, rows)
    images = images_by_hand(built(name), inputs, per_run)
    length = inputs["input_ids"].shape[1]
    with edited(name, images, strengths or [STRENGTH] * len(rows), after, first_layer, length) as model:
        return generate(model, inputs, **options)


def assert_equal(output: Any, expected: Any) -> None:
    assert output.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in zip(output.scores, expected.scores, strict=True):
        torch.testing.assert_close(ours.clamp_min(-1e9), theirs.clamp_min(-1e9), rtol=1e-9, atol=1e-9)


def assert_moved(output: Any, name: str, rows: tuple[Row, ...], **options: Any) -> None:
    """The contrast did something from the second token on, and nothing to the first."""
    plain = generate(built(name), inputs_of(name, rows), **options)
    assert torch.equal(output.scores[0], plain.scores[0])
    assert not torch.allclose(output.scores[1], plain.scores[1], atol=1e-4)
