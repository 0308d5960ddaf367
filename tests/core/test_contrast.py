"""The image-value contrast against stock `generate` with a cache that is edited by hand.

First family by family, then in every way to decode, on caches that go on, and together with RUDDER.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import CompileConfig, DynamicCache, StaticCache
from transformers.cache_utils import QuantizedLayer

from rudder_hf import RudderConfig, attach
from rudder_hf.core.backbones import find_backbone
from rudder_hf.core.call import Call, resolve_settings
from rudder_hf.core.contrast import open_contrast
from tests.support.contrasting import (
    ALONE,
    BATCH,
    STRENGTH,
    assert_equal,
    assert_moved,
    built,
    by_hand,
    contrasted,
    edited,
    generate,
    images_by_hand,
    inputs_of,
    settings,
)
from tests.support.helpers import with_dtype
from tests.support.zoo import FAMILIES, Row

CROSS = "cross-attention"
LATENT = "latent attention"
HYBRID = "has no values in layer"
REFUSED = {
    **{"mllama": CROSS, "idefics": CROSS},
    **dict.fromkeys(("kimi_k25", "mistral3-mistral4", "mistral_large4"), LATENT),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "lfm2_vl"), HYBRID),
    "nemotron_h_omni": HYBRID,
}
"""Families whose image positions have no values in the decoder's cache, with a part of the reason."""
EXACT = tuple(name for name in FAMILIES if name not in REFUSED and name not in ("git", "blip"))
# Parts of these compute in float32, so that a cache changes the last bits of stock `generate` as well.
ROUNDED = ("kosmos-2", "janus", "glm4v_moe", "paligemma-2", "llama4", "inkling_mm_model")
# Their tiny windows keep a part of the image of a short prompt, but nothing of a longer one's.
WINDOWED = ("cohere2_vision", "exaone4_5", "gemma3-window", "shieldgemma2", "llama4-chunk", "gemma4")
WINDOWED += ("gemma4_unified", "muse_glimmer", "inkling_mm_model", "step3p7")


def rows_of(name: str) -> tuple[Row, ...]:
    return ALONE if "padding" in FAMILIES[name].notes or name in WINDOWED else BATCH


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("after", "first_layer"), [(1, 2), (3, 1)])
def test_greedy_batch_equals_a_cache_edited_by_hand(name: str, after: int, first_layer: int) -> None:
    rows = rows_of(name)
    output = contrasted(name, rows, {"contrast_after": after, "contrast_first_layer": first_layer})
    assert_equal(output, by_hand(name, rows, after=after, first_layer=first_layer))
    if after == 1:
        assert_moved(output, name, rows)


@pytest.mark.parametrize("name", [name for name in REFUSED if name in FAMILIES])
def test_families_without_image_values_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]):
        contrasted(name, ALONE)


# In Kosmos-2 a norm stands between what attention gathers and its output.
@pytest.mark.parametrize("name", [name for name in EXACT if name != "kosmos-2"])
def test_attention_is_linear_in_what_is_edited(name: str) -> None:
    """Else the cache keeps something else than values there: compressed keys, for example."""
    family, model = FAMILIES[name], built(name)
    last = len(generate(model, inputs_of(name, ALONE), max_new_tokens=1).past_key_values.layers) - 1
    layer = model.get_submodule(family.layers)[last]
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[:, -1].clone())

    attention = next(part for key in ("self_attn", "attn", "attention") if (part := getattr(layer, key, None)))
    hook = attention.register_forward_hook(keep)
    try:
        for strength in (1e-9, 1.0, 2.0):
            contrasted(name, ALONE, {"contrast": strength, "contrast_first_layer": last}, max_new_tokens=2)
    finally:
        hook.remove()
    none, once, twice = outputs[1::2]
    if not torch.equal(once, none):  # a windowed last layer may have lost the image
        torch.testing.assert_close(twice - once, once - none, rtol=1e-6, atol=1e-6)


# Ways to decode, and caches that go on


TWO_IMAGES = (Row(1, 4, images=2), Row(2, 9))
FEW = ("llava", "qwen2_5_vl")


@pytest.mark.parametrize("name", FEW)
def test_strengths_differ_by_row_and_rows_without_image_are_untouched(name: str) -> None:
    rows, strengths = (*BATCH, Row(4, 8, images=0)), [0.0, 0.7, 1.3, 0.9]
    with pytest.warns(UserWarning, match="1 of 3 prompts have no image"):
        output = contrasted(name, rows, rudder={"contrast": strengths})
    assert_equal(output, by_hand(name, rows, strengths))
    plain = generate(built(name), inputs_of(name, rows))
    for row in (0, 3):
        assert all(
            torch.equal(ours[row], theirs[row]) for ours, theirs in zip(output.scores, plain.scores, strict=True)
        )


@pytest.mark.parametrize("name", ["qwen2_5_vl"])
def test_each_of_several_images_has_its_own_mean(name: str) -> None:
    output = contrasted(name, TWO_IMAGES)
    assert_equal(output, by_hand(name, TWO_IMAGES, per_run=True))
    together = by_hand(name, TWO_IMAGES)
    assert not torch.allclose(output.scores[1], together.scores[1], atol=1e-3)


def test_tokens_between_the_rows_of_an_image_do_not_part_it() -> None:
    inputs = inputs_of("mistral3", BATCH)
    assert max(map(len, images_by_hand(built("mistral3"), inputs, per_run=True))) > 1
    assert_equal(contrasted("mistral3", BATCH), by_hand("mistral3", BATCH))
    # With several images these tokens cannot be told from those between images: each run is one.
    assert_equal(contrasted("mistral3", TWO_IMAGES), by_hand("mistral3", TWO_IMAGES, per_run=True))


def test_an_image_of_one_token_counts_as_an_image() -> None:
    """As many images as prompts: all image tokens of a prompt are one image, also beside one of a single token."""
    model, image = built("llava"), built("llava").config.image_token_index
    ids = torch.tensor([[1, image, 5, 5, 5], [1, image, image, 5, image]])
    call = Call(model, (), {"input_ids": ids, "pixel_values": torch.zeros(2, 3, 8, 8)})
    edit = open_contrast(find_backbone(model), call, [image], resolve_settings(RudderConfig(contrast=0.5), None, 2))
    assert edit is not None
    assert [(prompt, places.tolist()) for prompt, places in edit.images] == [(0, [1]), (1, [1, 2, 4])]


WAYS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 0, "num_return_sequences": 2},
    "beam sampling": {"do_sample": True, "num_beams": 2},
}


@pytest.mark.parametrize("name", ["llava", "idefics2", "qwen2_5_vl"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", [1, 3])
def test_beams_and_sampling_equal_the_hand(name: str, way: str, after: int) -> None:
    torch.manual_seed(3)
    output = contrasted(name, BATCH, {"contrast_after": after}, **WAYS[way])
    torch.manual_seed(3)
    assert_equal(output, by_hand(name, BATCH, after=after, **WAYS[way]))


@pytest.mark.parametrize("name", ["llava", "idefics2", "qwen2_5_vl", "instructblip", "gemma3"])
def test_static_cache_equals_the_hand_and_is_edited_in_place(name: str) -> None:
    output = contrasted(name, BATCH, cache_implementation="static")
    assert_equal(output, by_hand(name, BATCH))
    cache = StaticCache(config=built(name).config.get_text_config(), max_cache_len=40)
    if name == "llava":
        first = contrasted(name, BATCH, max_new_tokens=1, past_key_values=cache)
        places = [layer.values.data_ptr() for layer in cache.layers]
        assert_equal(contrasted(name, BATCH, past_key_values=cache_reset(cache)), by_hand(name, BATCH))
        assert [layer.values.data_ptr() for layer in cache.layers] == places
        assert first.past_key_values is cache


def cache_reset(cache: Any) -> Any:
    cache.reset()
    return cache


@pytest.mark.parametrize("name", FEW)
def test_with_rudder_together(name: str) -> None:
    rows, rudder = BATCH, {"alpha_max": 6.0, "k": 5.0}
    output = contrasted(name, rows, {**rudder, "contrast_after": 2})
    model, inputs = built(name), inputs_of(name, rows)
    images = images_by_hand(model, inputs)
    length = inputs["input_ids"].shape[1]
    with (
        attach(model, settings(model, FAMILIES[name], **rudder, contrast=0.0)),
        edited(name, images, [STRENGTH] * 3, 2, 2, length),
    ):
        expected = generate(model, inputs)
    assert_equal(output, expected)
    alone = contrasted(name, rows, {"contrast_after": 2})
    assert not torch.allclose(output.scores[1], alone.scores[1], atol=1e-3)


@pytest.mark.parametrize("name", ["llava", "idefics2", "instructblip", "qwen2_5_vl"])
@pytest.mark.parametrize("alpha_max", [0.0, 6.0])
def test_without_contrast_nothing_changes_bit_for_bit(name: str, alpha_max: float) -> None:
    plain = generate(built(name), inputs_of(name, BATCH))
    off = contrasted(name, BATCH, {"alpha_max": alpha_max, "contrast": 0.0, "contrast_after": 3})
    other = contrasted(name, BATCH, {"alpha_max": alpha_max}, rudder={"contrast": 0.0})
    stock = contrasted(name, BATCH, {"alpha_max": alpha_max}, rudder=False)
    expected = off if alpha_max else plain
    for output, wanted in ((off, expected), (other, expected), (stock, plain)):
        assert torch.equal(output.sequences, wanted.sequences)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(output.scores, wanted.scores, strict=True))


def continued(model: Any, inputs: dict[str, Any], output: Any, **options: Any) -> Any:
    """Go on with the answer of a call, on its cache."""
    ids = output.sequences
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(ids[:, inputs["input_ids"].shape[1] :])], dim=1)
    return generate(
        model, {"input_ids": ids, "attention_mask": mask}, past_key_values=output.past_key_values, **options
    )


@pytest.mark.parametrize("name", ["llava", "idefics2"])
@pytest.mark.parametrize(("after", "lengths"), [(1, (2, 4)), (1, (2, 2, 2)), (2, (3, 3)), (3, (4, 2))])
def test_an_answer_that_goes_on_equals_one_generation(name: str, after: int, lengths: tuple[int, ...]) -> None:
    expected = by_hand(name, BATCH, after=after)
    model, inputs = built(name), inputs_of(name, BATCH)
    with attach(model, settings(model, FAMILIES[name], contrast_after=after)):
        output = generate(model, inputs, max_new_tokens=lengths[0])
        scores = list(output.scores)
        for length in lengths[1:]:
            output = continued(model, inputs, output, max_new_tokens=length)
            scores += output.scores
    assert output.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in zip(scores, expected.scores, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("only_new", [False, True])
def test_a_second_turn_edits_its_own_images_once(only_new: bool) -> None:
    """Every image is edited when an answer token was emitted since it was shown, and not again."""
    name, first_tokens = "llava", 4
    family, model = FAMILIES[name], built(name)
    first, second = inputs_of(name, (Row(1, 7),)), inputs_of(name, (Row(2, 5),))

    def talk() -> list[Any]:
        cache = DynamicCache()
        one = generate(model, first, max_new_tokens=first_tokens, past_key_values=cache)
        ids = torch.cat([one.sequences, second["input_ids"]], dim=1)
        mask = torch.ones_like(ids)
        whole = {"input_ids": ids, "attention_mask": mask, "pixel_values": second["pixel_values"]}
        if only_new:
            whole["input_ids"] = ids[:, int(cache.get_seq_length()) :]
        return [one, whole, cache]

    with attach(model, settings(model, family)):
        one, whole, cache = talk()
        two = generate(model, whole, past_key_values=cache)

    images = images_by_hand(model, first)
    length = first["input_ids"].shape[1]
    with edited(name, images, [STRENGTH], 1, 2, length):
        expected_one, whole, cache = talk()
    offset = length + first_tokens
    new = [[[position + offset for position in image] for image in row] for row in images_by_hand(model, second)]
    with edited(name, new, [STRENGTH], 1, 2, offset + second["input_ids"].shape[1]):
        expected_two = generate(model, whole, past_key_values=cache)
    assert_equal(one, expected_one)
    assert_equal(two, expected_two)


def plain_and_edited(model: Any, inputs: dict[str, Any]) -> list[DynamicCache]:
    """The caller's own caches, without the contrast and with it."""
    caches = [DynamicCache(), DynamicCache()]
    for cache, strength in zip(caches, (0.0, STRENGTH), strict=True):
        with attach(model, settings(model, FAMILIES["llava"], contrast=strength)):
            generate(model, inputs, past_key_values=cache, max_new_tokens=2)
    return caches


def test_the_callers_cache_is_edited() -> None:
    """A turn that goes on with it needs the edited values."""
    model, inputs = built("llava"), inputs_of("llava", ALONE)
    image, prompt = images_by_hand(model, inputs)[0][0], inputs["input_ids"].shape[1]
    plain, moved = plain_and_edited(model, inputs)
    for index, (was, layer) in enumerate(zip(plain.layers, moved.layers, strict=True)):
        assert torch.equal(layer.values[:, :, image], was.values[:, :, image]) == (index < 2)
        others = [position for position in range(prompt) if position not in image]
        assert torch.equal(layer.values[:, :, others], was.values[:, :, others])
        assert torch.equal(layer.keys[:, :, :prompt], was.keys[:, :, :prompt])


@pytest.mark.slow
def test_lora_offload_and_compiled_decoding() -> None:
    family = FAMILIES["llava"]
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False)
    adapted = get_peft_model(family.build(), lora).eval().double()
    merged = copy.deepcopy(adapted).merge_and_unload()
    offloaded = cpu_offload(family.build().double(), execution_device=torch.device("cpu"))
    compiled = CompileConfig(fullgraph=True, backend="eager", mode=None)
    compiled._compile_all_devices = True
    static = {"cache_implementation": "static", "compile_config": compiled}
    inputs = inputs_of("llava", BATCH)
    for model, twin, options in (
        (adapted, merged, {}),
        (offloaded, built("llava"), {}),
        (family.build().double(), built("llava"), static),
    ):
        with attach(model, RudderConfig(layer=2, alpha_max=0.0, contrast=STRENGTH, contrast_after=2)):
            output = generate(model, inputs, **options)
        with attach(twin, RudderConfig(layer=2, alpha_max=0.0, contrast=STRENGTH, contrast_after=2)):
            assert_equal(output, generate(twin, inputs))
    assert_equal(output, by_hand("llava", BATCH, after=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    model = FAMILIES["llava"].build().to(dtype)
    inputs = with_dtype(FAMILIES["llava"].inputs(model, ALONE), dtype)
    image = images_by_hand(model, inputs)[0][0]
    # Layer 2 is the first that is edited: what entered it is the same in both runs.
    plain, moved = (cache.layers[2].values[0][:, image] for cache in plain_and_edited(model, inputs))
    wide = plain.double()
    expected = wide + STRENGTH * (wide - wide.mean(1, keepdim=True))
    torch.testing.assert_close(moved.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_the_trace_says_what_was_moved() -> None:
    rows = (*BATCH[:2], Row(4, 8))
    output = contrasted("llava", rows, rudder={"contrast": [0.5, 0.0, 1.0]}, output_rudder=True)
    trace = output.rudder
    images = images_by_hand(built("llava"), inputs_of("llava", rows))
    assert [entry["prompt"] for entry in trace.contrast] == [0, 2]
    assert [entry["positions"] for entry in trace.contrast] == [images[0][0], images[2][0]]
    assert all(entry["layers"] == [2, 3] for entry in trace.contrast)
    assert trace.settings["contrast"] == [0.5, 0.0, 1.0]
    cache = generate(built("llava"), inputs_of("llava", rows), max_new_tokens=1).past_key_values
    for entry, strength in zip(trace.contrast, (0.5, 1.0), strict=True):
        for layer, moved in zip(entry["layers"], entry["moved"], strict=True):
            values = cache.layers[layer].values[entry["prompt"]][:, entry["positions"]]
            move = strength * (values - values.mean(1, keepdim=True))
            assert moved == pytest.approx(float(move.norm() / values.norm()), rel=1e-6)
    short = contrasted("llava", ALONE, {"contrast_after": 9}, output_rudder=True)
    assert short.rudder.contrast == []
    assert contrasted("llava", ALONE, {"contrast": 0.0}, output_rudder=True).rudder.contrast == []


class Quantised(QuantizedLayer):
    """A layer of a quantised cache without a backend, none of which is installed."""

    def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor

    def _dequantize(self, tensor: Tensor) -> Tensor:
        return tensor


def quantised() -> DynamicCache:
    cache = DynamicCache()
    cache.layer_class_to_replicate = Quantised
    return cache


def test_what_cannot_be_exact_is_refused_by_name() -> None:
    model, inputs = built("llava"), inputs_of("llava", ALONE)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    refusals: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("this call runs with use_cache=False", inputs, {"use_cache": False}),
        ("under assisted decoding or prompt lookup", inputs, {"prompt_lookup_num_tokens": 3}),
        ("under assisted decoding or prompt lookup", inputs, {"assistant_model": copy.deepcopy(model)}),
        ("keeps its values quantised", inputs, {"past_key_values": quantised()}),
        ("it needs `input_ids`", {"inputs_embeds": embeds}, {}),
        ("has 4 decoder layers", inputs, {"rudder": {"contrast_first_layer": 4}}),
        ("`contrast` is -0.1", inputs, {"rudder": {"contrast": -0.1}}),
        ("`contrast_after` is 0", inputs, {"rudder": {"contrast_after": 0}}),
    ]
    with attach(model, settings(model, FAMILIES["llava"])):
        for message, given, options in refusals:
            with pytest.raises(ValueError, match=message):
                generate(model, given, **options)
        offloaded = DynamicCache()
        offloaded.offloading = True
        with pytest.raises(ValueError, match="between devices"):
            generate(model, inputs, past_key_values=offloaded)
    with pytest.raises(ValueError, match="sliding window of layer 2 has lost a part"):
        contrasted("cohere2_vision", (Row(1, 4),), {"contrast_after": 3})


def test_images_of_an_earlier_turn_that_are_still_to_be_edited_are_refused() -> None:
    model, inputs = built("llava"), inputs_of("llava", ALONE)
    with attach(model, settings(model, FAMILIES["llava"], contrast_after=3)):
        output = generate(model, inputs, max_new_tokens=3)
        with pytest.raises(ValueError, match="ended before `contrast_after`"):
            continued(model, inputs, output)
        assert continued(model, inputs, output, rudder={"contrast": 0.0}).sequences.shape[1] > 0
