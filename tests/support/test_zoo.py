"""The zoo itself: every tiny model builds, looks at its image, says various things, and is laid out as it claims."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.support.zoo import FAMILIES, Family, Row
from tests.support.zoo.base import PAD, resolve

NEW = 12
ROW = Row(seed=1, words=7)
OTHER_PIXELS = Row(seed=2, words=7)


@functools.cache
def built(name: str) -> PreTrainedModel:
    """One model of a family for all tests of this file; none of them changes it."""
    return FAMILIES[name].build()


def decoder_layers(model: PreTrainedModel, family: Family) -> nn.ModuleList:
    """The layers of the model's decoder."""
    layers = resolve(model, family.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def speak(model: PreTrainedModel, inputs: dict[str, Any], tokens: int) -> tuple[list[int], torch.Tensor]:
    """The new tokens of the first row in greedy search, and the logits that the first of them was chosen from."""
    result = model.generate(**inputs, max_new_tokens=tokens, return_dict_in_generate=True, output_logits=True)
    assert not isinstance(result, torch.Tensor)
    return result.sequences[0, -tokens:].tolist(), result.logits[0]


@functools.cache
def spoken(name: str) -> tuple[list[int], torch.Tensor]:
    """What a family's model says about ``ROW``."""
    model = built(name)
    return speak(model, FAMILIES[name].inputs(model, [ROW]), NEW)


def is_pixels(value: Any) -> bool:
    """Whether an input is image content rather than ids, masks or sizes."""
    if isinstance(value, (list, tuple)):
        return all(is_pixels(entry) for entry in value)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    """Each family of the zoo."""
    return FAMILIES[request.param]


def test_entry_is_consistent(family: Family) -> None:
    """The model is of the type its entry says, in float32 and eval mode, and its decoder is where it says."""
    model = built(family.name)
    assert type(model).__name__ == MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family.model_type]
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    layers = decoder_layers(model, family)
    assert len(layers) == model.config.get_text_config(decoder=True).num_hidden_layers
    for index, layer in enumerate(layers):
        if index not in family.no_attention_layers:
            resolve(layer, family.update)
    loop = resolve(model, family.loop)
    assert isinstance(loop, PreTrainedModel)
    assert loop.generation_config is not None
    assert loop.generation_config.eos_token_id is None


def test_build_is_seeded(family: Family) -> None:
    """A second build has the same weights, whatever the global generator did in between, and leaves that alone."""
    state = torch.random.get_rng_state()
    again = family.build()
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = built(family.name).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())


def test_row_does_not_depend_on_its_batch(family: Family) -> None:
    """A row's tokens are the same alone and in a batch, but for padding on the left."""
    model = built(family.name)
    alone = family.inputs(model, [ROW])
    batch = family.inputs(model, [Row(seed=2, words=11), ROW])
    if "input_ids" not in alone:
        pytest.skip("the prompt is not in input_ids")
    ids = batch["input_ids"][1]
    kept = batch["attention_mask"][1].bool() if "attention_mask" in batch else ids != PAD
    assert torch.equal(ids[kept], alone["input_ids"][0])


def test_output_is_varied(family: Family) -> None:
    """Greedy search does not repeat one token for ever."""
    tokens, _ = spoken(family.name)
    assert len(tokens) == NEW
    assert len(set(tokens)) >= 3


def test_image_matters(family: Family) -> None:
    """Other pixels give other logits for the first token."""
    model = built(family.name)
    inputs = family.inputs(model, [ROW])
    pixels = {name: value for name, value in family.inputs(model, [OTHER_PIXELS]).items() if is_pixels(value)}
    assert pixels
    _, logits = spoken(family.name)
    _, others = speak(model, {**inputs, **pixels}, 1)
    difference = logits - others
    assert difference[difference.isfinite()].abs().max() > 0.05
