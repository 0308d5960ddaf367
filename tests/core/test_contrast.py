"""The image-value contrast against stock `generate` with a cache that is edited by hand, family by family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.contrasting import (
    ALONE,
    BATCH,
    assert_equal,
    assert_moved,
    built,
    by_hand,
    contrasted,
    generate,
    inputs_of,
)
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
def test_greedy_batch_equals_a_cache_edited_by_hand(name: str) -> None:
    rows = rows_of(name)
    output = contrasted(name, rows)
    assert_equal(output, by_hand(name, rows))
    assert_moved(output, name, rows)


@pytest.mark.parametrize("name", EXACT)
def test_later_edit_in_chosen_layers_equals_the_hand(name: str) -> None:
    rows = rows_of(name)
    output = contrasted(name, rows, {"contrast_after": 3, "contrast_first_layer": 1})
    assert_equal(output, by_hand(name, rows, after=3, first_layer=1))


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
