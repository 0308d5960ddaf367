"""The zoo itself, the general rule against its table, and the whole mapping of the installed transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from rudder_hf import RudderConfig, RudderForConditionalGeneration, UnsupportedModelError, attach, detach
from rudder_hf.core.backbones import (
    attention_update,
    decoder_layers,
    find_backbone,
    forwards_keywords,
    resolve_layer,
    steerable_layers,
)
from rudder_hf.core.families import REFUSED, TESTED, support
from tests.core.test_exactness import STEERED, built
from tests.support import zoo
from tests.support.zoo import FAMILIES
from tests.support.zoo.base import MISSING, SINCE, Family, Row, resolve


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
    options = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_logits": True}
    output, other = model.generate(**inputs, **options), model.generate(**mixed, **options)
    assert len(output.logits) == 12
    assert len(set(output.sequences[0, -12:].tolist())) >= 3
    difference = output.logits[0] - other.logits[0]
    assert difference[difference.isfinite()].abs().max() > 0.05


@pytest.mark.parametrize("name", STEERED)
def test_the_rule_finds_what_reading_the_code_found(name: str) -> None:
    family, model = FAMILIES[name], built(name)
    backbone = find_backbone(model)
    assert backbone.layers is resolve(model, family.layers)
    assert backbone.loop is resolve(model, family.loop)
    without = set(range(len(backbone.layers))) - set(steerable_layers(backbone))
    assert without == set(family.no_attention_layers)
    for index in steerable_layers(backbone):
        layer = backbone.layers[index]
        assert attention_update(layer).module is resolve(layer, family.update)
        assert forwards_keywords(backbone, layer)


@pytest.mark.parametrize("name", STEERED)
def test_adding_to_the_update_adds_to_the_residual_stream(name: str) -> None:
    """Eq. 5 itself: with v added to the update, what the layer computes on after attention has moved by v.

    Where v is large, a pre-norm layer's output moves by v and by what its MLP makes of it; so the MLP is silenced.
    """
    family, model = FAMILIES[name], FAMILIES[name].build()
    backbone = find_backbone(model)
    index = steerable_layers(backbone)[-1]
    layer = backbone.layers[index]
    update = attention_update(layer)
    silence_mlp(layer, update.name)
    outputs: list[torch.Tensor] = []
    keep = layer.register_forward_hook(lambda module, args, output: outputs.append(first(output).detach().clone()))
    inputs = family.inputs(model, [Row(1, 5)])
    model.generate(**inputs, max_new_tokens=1)
    v = torch.randn(outputs[0].shape[-1])

    def add(module: Any, args: Any, output: Any) -> Any:
        moved = first(output) + v / update.multiplier
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    push = update.module.register_forward_hook(add)
    model.generate(**inputs, max_new_tokens=1)
    keep.remove()
    push.remove()
    scale = float(getattr(layer, "layer_scalar", torch.ones(1)).item()) if hasattr(layer, "layer_scalar") else 1.0
    torch.testing.assert_close(outputs[1] - outputs[0], (scale * v).expand_as(outputs[0]), rtol=1e-3, atol=1e-3)


def first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def silence_mlp(layer: torch.nn.Module, update: str) -> None:
    """Make everything of the layer but its attention return zero."""
    attention = {"self_attn", "self_attention", "attention", "attn", "mixer", "input_layernorm", update.split(".")[0]}
    for child_name, child in layer.named_children():
        if child_name not in attention and not isinstance(child, torch.nn.Dropout):
            child.register_forward_hook(lambda module, args, output: zeros(output))


def zeros(output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(zeros(item) for item in output)
    return torch.zeros_like(output) if isinstance(output, torch.Tensor) else output


@pytest.mark.parametrize("model_type", MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
def test_every_model_type_of_transformers_has_a_verdict(model_type: str) -> None:
    verdict = support(model_type)
    assert verdict in ("supported", "refused", "unknown")
    # Supported means tested on a tiny model; a family that passes its tests is listed as tested.
    tested = {FAMILIES[name].model_type for name in STEERED} | (TESTED & MISSING)
    assert (verdict == "supported") == (model_type in tested)
    assert (verdict == "refused") == bool(REFUSED.get(model_type))


def test_the_lists_do_not_overlap_and_are_current() -> None:
    assert not TESTED & set(REFUSED)
    assert {FAMILIES[name].model_type for name in STEERED} == TESTED - MISSING
    assert support("a-family-of-next-year") == "unknown"


def test_what_an_older_transformers_lacks_is_left_out_by_name() -> None:
    """No more than it lacks: each type of the table is there from its version on, and not before."""
    for model_type in SINCE:
        assert (model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) == (model_type not in MISSING)


def test_an_unknown_family_is_tried_with_a_warning() -> None:
    model = FAMILIES["llava"].build()
    model.config.model_type = "llava-of-next-year"
    with pytest.warns(UserWarning, match=r"not tested on 'llava-of-next-year'.*model\.language_model\.layers"):
        find_backbone(model)


def test_keywords_have_to_pass_every_module_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one keeps them to itself, as in custom code, the state waits in the thread's slot."""
    model = built("llava")
    backbone = find_backbone(model)
    assert forwards_keywords(backbone, backbone.layers[0])
    monkeypatch.setattr(type(model.model.language_model), "forward", lambda self, input_ids: input_ids)
    assert not forwards_keywords(backbone, backbone.layers[0])


@pytest.mark.parametrize("family", [FAMILIES["git"], FAMILIES["blip"], *zoo.REFUSED], ids=lambda family: family.name)
def test_refused_families_say_why_and_stay_usable(family: Family) -> None:
    model = family.build()
    with pytest.raises(UnsupportedModelError, match=REFUSED[family.model_type][:30]):
        attach(model, RudderConfig(layer=0))
    model.generate(**family.inputs(model, [Row(1, 4)]), max_new_tokens=2)


def t5() -> T5Config:
    return T5Config(d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=2, vocab_size=40)


@pytest.mark.parametrize("kind", ["instructblip", "blip-2"])
def test_an_encoder_decoder_language_model_is_refused(kind: str) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    vision = {**small, "image_size": 16, "patch_size": 8}
    qformer = {**small, "encoder_hidden_size": 16, "vocab_size": 40}
    parts = {"vision_config": vision, "qformer_config": qformer, "text_config": t5().to_dict()}
    if kind == "instructblip":
        model: Any = InstructBlipForConditionalGeneration(InstructBlipConfig(**parts))
    else:
        model = Blip2ForConditionalGeneration(Blip2Config(**parts))
    with pytest.raises(UnsupportedModelError, match=r"encoder-decoder.*Vicuna"):
        attach(model, RudderConfig(layer=0))


@pytest.mark.parametrize("name", sorted({"mllama", "lfm2_vl", "qwen3_5", "nemotron_h_omni"} - MISSING))
def test_layers_without_self_attention_are_refused_by_name(name: str) -> None:
    family, model = FAMILIES[name], built(name)
    backbone = find_backbone(model)
    index = family.no_attention_layers[0]
    usable = ", ".join(map(str, steerable_layers(backbone)))
    with pytest.raises(ValueError, match=f"{type(backbone.layers[index]).__name__} without self-attention") as caught:
        attach(model, RudderConfig(layer=index))
    assert usable in str(caught.value)


def test_a_part_without_generate_runs_no_token_loop() -> None:
    """A model with a `generate` of its own delegates only to a language model that has one."""
    model = FAMILIES["llava"].build()

    class WithItsOwn(type(model)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    model.__class__ = WithItsOwn
    model.text_model = torch.nn.Identity()
    assert find_backbone(model).loop is model


class TwoStacks(torch.nn.Module):
    """Two lists of layers with self-attention, as deep as each other, and a config that tells the decoder's length."""

    def __init__(self) -> None:
        super().__init__()
        for name, count in (("reader", 3), ("writer", 2)):
            stack = torch.nn.Module()
            stack.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(count))
            for layer in stack.layers:
                layer.self_attn = torch.nn.Identity()
            setattr(self, name, stack)
        self.config = self

    def get_text_config(self, decoder: bool = False) -> Any:
        return SimpleNamespace(num_hidden_layers=2 if decoder else 3)


def test_the_decoder_is_as_long_as_its_config_says() -> None:
    model = TwoStacks()
    path, layers = decoder_layers(model)
    assert path == "writer.layers"
    assert layers is model.writer.layers
    for stack in (model.reader, model.writer):
        stack.layers = torch.nn.ModuleList([torch.nn.Identity()])
    with pytest.raises(UnsupportedModelError, match="no decoder layers with self-attention in TwoStacks"):
        decoder_layers(model)


def test_layers_out_of_range_are_refused_with_the_range() -> None:
    backbone = find_backbone(built("llava"))
    count = len(backbone.layers)
    for layer in (count, -count - 1, 1000):
        with pytest.raises(ValueError, match=f"from {-count} to {count - 1}"):
            resolve_layer(backbone, layer)
    assert resolve_layer(backbone, -1) == count - 1


def test_a_text_only_model_is_refused_as_such(tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, **shape))
    model.save_pretrained(tmp_path)
    for part in (model, FAMILIES["instructblip"].build().language_model):
        with pytest.raises(UnsupportedModelError, match="'llama' is a text-only model"):
            attach(part, RudderConfig(layer=0))
    # Before any weights are loaded, in transformers' words.
    with pytest.raises(ValueError, match=r"LlamaConfig.*AutoModelForImageTextToText"):
        RudderForConditionalGeneration.from_base(tmp_path, RudderConfig(layer=0))
    detach(model)  # harmless
