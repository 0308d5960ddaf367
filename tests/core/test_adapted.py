"""Bases with LoRA adapters (active, disabled, merged) and with int8 weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModelForImageTextToText, TorchAoConfig

from rudder_hf import RudderForConditionalGeneration, UnsupportedModelError, attach
from tests.core.test_lifecycle import comes_and_goes
from tests.support.helpers import (
    OTHER_ROW,
    ROW,
    Listener,
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
    snapshot_of_used,
    steered_by,
    target_layer,
)
from tests.support.zoo import FAMILIES, Family

TASKS = (None, "CAUSAL_LM")
CASES = (
    ("llava", None, "wrapper"),
    ("llava", None, "attach"),
    ("llava", "CAUSAL_LM", "wrapper"),
    ("llava", "CAUSAL_LM", "attach"),
    ("instructblip", None, "attach"),
    ("instructblip", "CAUSAL_LM", "wrapper"),
    ("gemma3", "CAUSAL_LM", "attach"),
)


def adapted(name: str, task: str | None) -> tuple[PeftModel, dict[str, Any]]:
    """A base with a LoRA adapter in the attention of every decoder layer, whose weights matter, and inputs for it."""
    family = family_of(name)
    base = family.build()
    torch.manual_seed(0)
    lora = LoraConfig(
        r=4,
        lora_alpha=8,
        # The vision towers have projections of the same names.
        target_modules=rf".*{family.layers.removesuffix('.layers')}.*\.(q_proj|v_proj|o_proj)",
        task_type=task,
        init_lora_weights=False,
    )
    return get_peft_model(base, lora).eval(), family.inputs(base, [ROW])


@pytest.mark.parametrize(("name", "task", "way"), CASES)
def test_active_disabled_merged(name: str, task: str | None, way: str) -> None:
    """Steering follows what the adapter does to the base: active, switched off, and merged into its weights."""
    model, inputs = adapted(name, task)
    stock = family_of(name).build()
    vanilla, active_vanilla = run(stock, inputs), run(model, inputs)
    assert_different(active_vanilla, vanilla)
    with attach(stock, settings()):
        steered_stock = run(stock, inputs, output_rudder=True)
    before = snapshot(model)

    steered, remove = steered_by(way, model)
    active = run(steered, inputs, output_rudder=True)
    assert_different(active, active_vanilla)
    assert_same(run(steered, inputs, rudder=False), active_vanilla)
    assert_same(run(steered, inputs, rudder={"alpha_max": 0.0}), active_vanilla)
    with model.disable_adapter():
        assert_same(run(steered, inputs, output_rudder=True), steered_stock)
        assert_same(run(steered, inputs, rudder=False), vanilla)
    assert_same(run(steered, inputs, output_rudder=True), active)
    remove()
    assert snapshot(model) == before
    assert not rudder_parts(model)
    assert_same(run(model, inputs), active_vanilla)

    merged = model.merge_and_unload()
    merged_before = snapshot(merged)
    steered, remove = steered_by(way, merged)
    output = run(steered, inputs, output_rudder=True)
    assert_near(output, active, 1e-4)
    torch.testing.assert_close(output.rudder.card, active.rudder.card, rtol=0, atol=1e-5)
    remove()
    assert snapshot(merged) == merged_before


@pytest.mark.parametrize("task", TASKS)
def test_base_is_steered_before_it_is_adapted(task: str | None) -> None:
    """An adapter put on a steered base is steered with it, and RUDDER comes off again underneath it."""
    reference, inputs = adapted("llava", task)
    base = FAMILIES["llava"].build()
    vanilla = run(reference, inputs)
    with attach(reference, settings()):
        wanted = run(reference, inputs, output_rudder=True)
    handle = attach(base, settings())
    torch.manual_seed(0)
    model = get_peft_model(base, copy.deepcopy(reference.peft_config["default"])).eval()
    assert_same(run(model, inputs, output_rudder=True), wanted)
    handle.remove()
    assert not rudder_parts(base)
    assert_same(run(model, inputs), vanilla)


@pytest.mark.parametrize("task", TASKS)
def test_merged_while_steered(task: str | None) -> None:
    """Merging the adapter of a steered model leaves the merged model steered, and removal cleans it."""
    model, inputs = adapted("llava", task)
    handle = attach(model, settings())
    wanted = run(model, inputs)
    merged = model.merge_and_unload()
    assert_near(run(merged, inputs), wanted, 1e-4)
    handle.remove()
    assert not rudder_parts(merged)
    with attach(merged, settings()):
        assert_near(run(merged, inputs), wanted, 1e-4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("second", ["wrapper", "attach"])
@pytest.mark.parametrize("target", ["peft", "base"])
def test_second_installation_is_refused(task: str | None, second: str, target: str) -> None:
    """The PEFT model and the model in it are one model to RUDDER."""
    model, inputs = adapted("llava", task)
    before = snapshot_of_used(model, inputs)
    with attach(model if target == "base" else model.get_base_model(), settings()):
        installed = snapshot(model)
        with pytest.raises(ValueError, match="already steered"):
            steered_by(second, model if target == "peft" else model.get_base_model())
        assert snapshot(model) == installed
    assert snapshot(model) == before


@pytest.mark.parametrize("task", TASKS)
def test_wrapper_manners(task: str | None) -> None:
    """What the wrapper passes on reaches the model inside the PEFT model."""
    model, inputs = adapted("llava", task)
    wrapper: Any = RudderForConditionalGeneration.from_base(model, settings())
    assert wrapper.generation_config is model.get_base_model().generation_config
    assert wrapper.dtype == torch.float32
    assert wrapper.get_input_embeddings() is model.get_base_model().get_input_embeddings()
    assert wrapper.peft_config.keys() == {"default"}
    with torch.no_grad():
        assert torch.equal(wrapper(**inputs).logits, model(**inputs).logits)
    listener = Listener()
    output = run(wrapper, inputs, streamer=listener)
    assert [put[0] for put in listener.received[1:]] == output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert_same(run(wrapper, inputs, rudder=False), run(model, inputs, rudder=False))
    assert wrapper.unwrap() is model


def test_learned_prompts_are_refused() -> None:
    """They stand before the prompt, where nothing tells them from it."""
    model = get_peft_model(FAMILIES["llava"].build(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    for steer in (attach, RudderForConditionalGeneration.from_base):
        with pytest.raises(UnsupportedModelError, match="learned prompts"):
            steer(model, settings())
    assert not rudder_parts(model)


# A quantised base: torchao's int8 weights, made in place and while loading


def torchao() -> Any:
    """The library, which has no version for the oldest torch."""
    return pytest.importorskip("torchao.quantization", reason="torchao is not installed")


def quantised(family: Family) -> Any:
    """A model whose decoder has int8 weights."""
    model = family.build()
    torchao().quantize_(model.get_submodule(family.layers), torchao().Int8WeightOnlyConfig(version=2))
    return model


def is_quantised(layer: nn.Module) -> bool:
    """Whether the output projection of a layer's attention is stored as integers."""
    return type(layer.get_submodule("self_attn.o_proj").weight).__name__ == "Int8Tensor"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"), [("llava", "wrapper"), ("llava", "attach"), ("instructblip", "wrapper"), ("gemma3", "attach")]
)
def test_quantised_base(name: str, way: str) -> None:
    family = family_of(name)
    model = quantised(family)
    assert is_quantised(target_layer(family, model))
    inputs = family.inputs(model, [ROW, OTHER_ROW])
    assert not torch.equal(logits(run(model, inputs)), logits(run(family.build(), inputs)))
    comes_and_goes(way, model, inputs)


def test_card_is_of_the_quantised_model() -> None:
    """CARD pools what the integer weights make of the prompt."""
    family = FAMILIES["llava"]
    model = quantised(family)
    inputs = family.inputs(model, [ROW])
    expected = direction(prompt_updates(family, model, inputs), inputs["attention_mask"])
    plain = direction(prompt_updates(family, family.build(), inputs), inputs["attention_mask"])
    assert (expected - plain).abs().max() > 1e-4
    with attach(model, settings()):
        output = run(model, inputs, output_rudder=True)
    torch.testing.assert_close(output.rudder.card.double(), expected, rtol=0, atol=1e-5)


def test_quantised_while_loading(tmp_path: Path) -> None:
    """`from_base` hands the quantisation to the base, and the wrapper refuses casts as the base does."""
    family = FAMILIES["llava"]
    family.build().save_pretrained(tmp_path)
    options: dict[str, Any] = {
        "quantization_config": TorchAoConfig(torchao().Int8WeightOnlyConfig(version=2)),
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
