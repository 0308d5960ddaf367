"""A quantised base: torchao's int8 weights, made in place and while loading."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForImageTextToText, TorchAoConfig

from rudder_hf import RudderForConditionalGeneration, attach
from tests.support.helpers import (
    OTHER_ROW,
    ROW,
    assert_different,
    assert_near,
    assert_same,
    direction,
    family_of,
    logits,
    prompt_updates,
    rudder_parts,
    run,
    settings,
    snapshot,
    steered_by,
    target_layer,
)
from tests.support.zoo import FAMILIES, Family


def quantised(family: Family) -> Any:
    """A model whose decoder has int8 weights."""
    model = family.build()
    quantize_(model.get_submodule(family.layers), Int8WeightOnlyConfig(version=2))
    return model


def is_quantised(layer: nn.Module) -> bool:
    """Whether the output projection of a layer's attention is stored as integers."""
    return type(layer.get_submodule("self_attn.o_proj").weight).__name__ == "Int8Tensor"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"), [("llava", "wrapper"), ("llava", "attach"), ("instructblip", "wrapper"), ("gemma3", "attach")]
)
def test_quantised_base(name: str, way: str) -> None:
    """Unsteered a quantised base is itself bit for bit, steered it moves, and afterwards nothing is left."""
    family = family_of(name)
    model = quantised(family)
    assert is_quantised(target_layer(family, model))
    inputs = family.inputs(model, [ROW, OTHER_ROW])
    vanilla, before = run(model, inputs), snapshot(model)
    assert not torch.equal(logits(vanilla), logits(run(family.build(), inputs)))
    steered, remove = steered_by(way, model)
    assert_same(run(steered, inputs, rudder=False), vanilla)
    for mode in ("beta", "add"):
        assert_same(run(steered, inputs, rudder={"alpha_max": 0.0, "mode": mode}), vanilla)
        assert_different(run(steered, inputs, rudder={"mode": mode}), vanilla)
    remove()
    assert snapshot(model) == before
    assert not rudder_parts(model)
    assert_same(run(model, inputs), vanilla)


def test_card_is_of_the_quantised_model() -> None:
    """CARD pools what the integer weights make of the prompt, and a copy of the wrapper does the same."""
    family = FAMILIES["llava"]
    model = quantised(family)
    inputs = family.inputs(model, [ROW])
    expected = direction(prompt_updates(family, model, inputs), inputs["attention_mask"])
    plain = direction(prompt_updates(family, family.build(), inputs), inputs["attention_mask"])
    assert (expected - plain).abs().max() > 1e-4
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    output = run(wrapper, inputs, output_rudder=True)
    torch.testing.assert_close(output.rudder.card.double(), expected, rtol=0, atol=1e-5)
    assert_same(run(copy.deepcopy(wrapper), inputs, output_rudder=True), output)


def test_quantised_while_loading(tmp_path: Path) -> None:
    """`from_base` hands the quantisation to the base, and the wrapper refuses casts as the base does."""
    family = FAMILIES["llava"]
    family.build().save_pretrained(tmp_path)
    options: dict[str, Any] = {
        "quantization_config": TorchAoConfig(Int8WeightOnlyConfig(version=2)),
        "device_map": "cpu",
    }
    stock = AutoModelForImageTextToText.from_pretrained(tmp_path, **options)
    wrapper = RudderForConditionalGeneration.from_base(tmp_path, settings(), **options)
    assert is_quantised(target_layer(family, wrapper.model))
    inputs = family.inputs(stock, [ROW])
    vanilla = run(stock, inputs)
    assert_near(run(wrapper, inputs, rudder=False), vanilla)
    output = run(wrapper, inputs)
    assert_different(output, vanilla)
    with attach(stock, settings()):
        assert_near(run(stock, inputs), output)
    with pytest.raises(ValueError, match="quantized"):
        wrapper.half()
    assert not rudder_parts(wrapper.unwrap())
