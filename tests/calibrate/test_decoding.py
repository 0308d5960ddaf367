"""Many settings from one prefill: every row equals the setting run alone, and so does its likelihood."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from rudder_hf import RudderConfig, attach
from rudder_hf.calibrate import VANILLA, Setting, decode_settings
from rudder_hf.calibrate.prompts import RoomyLayer
from rudder_hf.methods import get
from tests.support.helpers import PLAIN, family_of, snapshot_of_used
from tests.support.zoo import FAMILIES, Row

LAYER = 2
NEW = 8
ROWS = [Row(seed=1, words=7), Row(seed=2, words=11)]
SETTINGS = [
    VANILLA,
    Setting(LAYER, alpha_max=60.0, k=5.0),
    Setting(LAYER, alpha_max=60.0, k=0.5, c=0.2, g_min=0.4, g_max=0.9),
    Setting(LAYER, alpha_max=30.0, pool="norm"),
    Setting(LAYER, alpha_max=60.0, mode="add"),
    Setting(LAYER, alpha_max=80.0, mode="add", norm_cap=25.0),
    Setting(LAYER, alpha_max=80.0, norm_cap=12.0),
    Setting(LAYER, alpha_max=60.0, steer_first_token=True),
    Setting(LAYER, alpha_max=40.0, mode="add", steer_first_token=True),
]
SPANS = [
    Setting(LAYER, alpha_max=60.0, span="text"),
    Setting(LAYER, alpha_max=60.0, span="image", pool="norm"),
    Setting(LAYER, alpha_max=60.0, span="text", mode="add", steer_first_token=True),
]
CONTRASTS = [
    Setting(-1, contrast=4.0, contrast_after=1),
    Setting(-1, contrast=4.0, contrast_after=3),
    Setting(-1, contrast=9.0, contrast_first_layer=0, contrast_after=2),
    Setting(LAYER, alpha_max=60.0, contrast=4.0, contrast_after=3),
    Setting(LAYER, alpha_max=40.0, mode="add", steer_first_token=True, contrast=9.0, contrast_after=1),
]
# Positions by a mask, multimodal positions, prompts as embeddings, sandwich norms, sliding windows, a residual
# multiplier, no keyword.
NAMES = ["llava", "qwen2_5_vl", "instructblip", "gemma3", "idefics2", "granite4_vision", PLAIN.name]


def alone(model: Any, inputs: dict[str, Any], setting: Setting) -> tuple[int, ...]:
    """What `attach` and `generate` write under one setting, up to the end of the answer."""
    with attach(model, RudderConfig(**setting.record())):
        output = model.generate(
            **inputs, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return tuple(output.sequences[0, output.sequences.shape[1] - len(output.logits) :].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_every_row_equals_its_setting_alone(name: str) -> None:
    family = family_of(name)
    model = family.build()
    settings = SETTINGS + (SPANS if name != "instructblip" else [])
    decoded = decode_settings(model, family.inputs(model, ROWS), settings, max_new_tokens=NEW)
    for row, answers in zip(ROWS, decoded, strict=True):
        expected = [alone(model, family.inputs(model, [row]), setting) for setting in settings]
        assert [answer.tokens for answer in answers] == expected
        assert len(set(expected)) > 3  # the settings do differ


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "instructblip", "gemma3", "idefics2"])
def test_contrasts_equal_their_settings_alone(name: str) -> None:
    """Edits at several places, with and without a push, beside rows without; some rows end before their edit."""
    family = family_of(name)
    model = family.build()
    settings = [*SETTINGS[:2], *CONTRASTS]
    inputs = family.inputs(model, ROWS)
    vanilla = decode_settings(model, inputs, [VANILLA], max_new_tokens=NEW)
    for end in (None, vanilla[0][0].tokens[1]):
        model.generation_config.eos_token_id = end
        decoded = decode_settings(model, inputs, settings, max_new_tokens=NEW, score=True)
        in_turns = decode_settings(model, inputs, settings, max_new_tokens=NEW, score=True, batch_size=4)
        for row, answers, again in zip(ROWS, decoded, in_turns, strict=True):
            expected = [alone(model, family.inputs(model, [row]), setting) for setting in settings]
            assert [answer.tokens for answer in answers] == [answer.tokens for answer in again] == expected
            # Likelihoods are the unsteered model's, which sees the values as they were.
            assert [a.nll for a in answers] == pytest.approx([a.nll for a in again], rel=1e-4)
        if end is None:
            assert len({answer.tokens for answer in decoded[0]}) > 4


def test_another_images_values_are_the_shuffled_contrast() -> None:
    family = FAMILIES["llava"]
    model = family.build()
    settings = [VANILLA, *(Setting(-1, contrast=9.0, contrast_after=after) for after in (1, 3))]
    inputs = family.inputs(model, [*ROWS, ROWS[0]])
    decoded = decode_settings(model, inputs, settings, other_card=True, max_new_tokens=NEW)
    own = decode_settings(model, family.inputs(model, ROWS), settings, max_new_tokens=NEW)
    assert [[a.tokens for a in row] for row in decoded] != [[a.tokens for a in row] for row in own]
    inputs = family.inputs(model, ROWS)
    for place, setting in enumerate(settings[1:], start=1):
        method = get("contrast-shuffled", contrast=9.0, contrast_after=setting.contrast_after)
        with method.applied(model) as generate:
            written = generate(**inputs, max_new_tokens=NEW, do_sample=False)
        expected = [tuple(row) for row in written[:, inputs["input_ids"].shape[1] :].tolist()]
        assert [row[place].tokens for row in decoded] == expected


def test_turns_of_few_rows_change_nothing() -> None:
    model = FAMILIES["llava"].build()
    inputs = FAMILIES["llava"].inputs(model, ROWS)
    together = decode_settings(model, inputs, SETTINGS, max_new_tokens=NEW, score=True)
    in_turns = decode_settings(model, inputs, SETTINGS, max_new_tokens=NEW, score=True, batch_size=5)
    assert [[a.tokens for a in row] for row in together] == [[a.tokens for a in row] for row in in_turns]
    torch.testing.assert_close(
        torch.tensor([[a.nll for a in row] for row in together]),
        torch.tensor([[a.nll for a in row] for row in in_turns]),
    )


def ends_early(model: Any, inputs: dict[str, Any]) -> int:
    """A token that some row writes in the middle of its answer, to end it there."""
    return decode_settings(model, inputs, SETTINGS[:2], max_new_tokens=NEW)[0][1].tokens[3]


def test_rows_end_on_their_own() -> None:
    family = FAMILIES["llava"]
    model = family.build()
    end = ends_early(model, family.inputs(model, ROWS))
    model.generation_config.eos_token_id = end
    decoded = decode_settings(model, family.inputs(model, ROWS), SETTINGS, max_new_tokens=NEW)
    lengths = {len(answer.tokens) for row in decoded for answer in row}
    assert len(lengths) > 1
    for row, answers in zip(ROWS, decoded, strict=True):
        for setting, answer in zip(SETTINGS, answers, strict=True):
            assert answer.tokens == alone(model, family.inputs(model, [row]), setting)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])
def test_likelihood_is_that_of_the_stock_model(name: str) -> None:
    """Reference: one plain forward over prompt and answer, without cache, padding or hooks."""
    family = FAMILIES[name]
    model = family.build()
    rows = [*ROWS, Row(seed=3, words=5)]
    inputs = family.inputs(model, rows)
    decoded = decode_settings(model, inputs, SETTINGS, max_new_tokens=NEW, score=True, other_image=True)
    assert len(decoded) == 2
    for place, answers in enumerate(decoded):
        for answer in answers[:4]:
            assert answer.nll == pytest.approx(reference_nll(family, model, rows[place], answer.tokens), rel=1e-4)
            other = reference_nll(family, model, rows[place + 1], answer.tokens)
            assert answer.other_nll == pytest.approx(other, rel=1e-4)


def test_likelihood_ends_with_the_answer() -> None:
    """Answers of one batch end at different places; what comes after the end of one is not part of it."""
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, ROWS)
    model.generation_config.eos_token_id = ends_early(model, inputs)
    decoded = decode_settings(model, inputs, SETTINGS, max_new_tokens=NEW, score=True)
    lengths = {len(answer.tokens) for answers in decoded for answer in answers}
    assert len(lengths) > 1
    for row, answers in zip(ROWS, decoded, strict=True):
        for answer in answers:
            assert answer.nll == pytest.approx(reference_nll(family, model, row, answer.tokens), rel=1e-4)


def test_the_same_answer_to_two_images_is_scored_with_each() -> None:
    family = FAMILIES["llava"]
    model = family.build()
    rows = [*ROWS, Row(seed=3, words=5)]
    # Prompts are padded to one length, so that every row has to write the same.
    same = {"prefix_allowed_tokens_fn": lambda _, written: [10 + written.shape[0] % 3]}
    inputs = family.inputs(model, rows)
    decoded = decode_settings(model, inputs, SETTINGS[:2], max_new_tokens=3, score=True, other_image=True, **same)
    (answer,) = {answer.tokens for answers in decoded for answer in answers}
    for place, answers in enumerate(decoded):
        own, other = (reference_nll(family, model, rows[row], answer) for row in (place, place + 1))
        assert own != pytest.approx(other, rel=1e-2)
        for found in answers:
            assert (found.nll, found.other_nll) == (pytest.approx(own, rel=1e-4), pytest.approx(other, rel=1e-4))


def reference_nll(family: Any, model: Any, row: Row, tokens: tuple[int, ...]) -> float:
    inputs = family.inputs(model, [row])
    prompt = inputs["input_ids"]
    for name in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            tail = {
                "input_ids": torch.tensor([tokens]),
                "attention_mask": torch.ones(1, len(tokens), dtype=torch.long),
            }
            inputs[name] = torch.cat([inputs[name], tail.get(name, torch.zeros(1, len(tokens), dtype=torch.long))], 1)
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, prompt.shape[1] - 1 : -1].double()
    return float(-logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum())


def test_another_images_card_is_the_shuffled_control() -> None:
    """Reference: the control among the methods, on a batch in which each prompt lends its CARD to the one before."""
    family = FAMILIES["llava"]
    model = family.build()
    settings = [Setting(LAYER, alpha_max=60.0), Setting(LAYER, alpha_max=60.0, mode="add", steer_first_token=True)]
    inputs = family.inputs(model, [*ROWS, ROWS[0]])
    decoded = decode_settings(model, inputs, settings, other_card=True, score=True, max_new_tokens=NEW)
    own = decode_settings(model, family.inputs(model, ROWS), settings, max_new_tokens=NEW)
    with pytest.raises(ValueError, match="at least two images"):
        decode_settings(model, family.inputs(model, ROWS[:1]), settings, other_card=True, max_new_tokens=NEW)
    assert [[a.tokens for a in row] for row in decoded] != [[a.tokens for a in row] for row in own]
    for place, setting in enumerate(settings):
        config = RudderConfig(**setting.record())
        method = get("rudder-shuffled", config=config, mode=setting.mode)
        inputs = family.inputs(model, ROWS)
        with method.applied(model) as generate:
            written = generate(**inputs, max_new_tokens=NEW, do_sample=False)
        expected = [tuple(row) for row in written[:, inputs["input_ids"].shape[1] :].tolist()]
        assert [row[place].tokens for row in decoded] == expected


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["one", "many", "crop", "rows"]), max_size=12))
def test_a_cache_with_room_holds_what_a_stock_one_does(steps: list[str]) -> None:
    generator = torch.Generator().manual_seed(len(steps))

    def new(rows: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randn(rows, 2, count, 3, generator=generator) for _ in range(2))  # type: ignore[return-value]

    stock = DynamicLayer()
    stock.update(*new(4, 5))
    untouched = stock.keys.clone()
    start = stock.keys
    roomy = RoomyLayer.of(copy.copy(stock))
    assert isinstance(roomy, RoomyLayer)
    for step in steps:
        if step == "crop":
            for layer in (stock, roomy):
                layer.crop(-1)
        elif step == "rows":
            picked = torch.tensor([row % stock.keys.shape[0] for row in (0, 2, 2, 3)])
            for layer in (stock, roomy):
                layer.reorder_cache(picked)
        else:
            added = new(stock.keys.shape[0], 1 if step == "one" else 40)
            torch.testing.assert_close(roomy.update(*added), stock.update(*added), rtol=0, atol=0)
        assert torch.equal(roomy.keys, stock.keys)
        assert torch.equal(roomy.values, stock.values)
        assert roomy.get_seq_length() == stock.get_seq_length()
    assert torch.equal(start, untouched)  # what it began with belongs to others


def test_nothing_stays_on_the_model() -> None:
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, ROWS)
    before = snapshot_of_used(model, inputs)
    decode_settings(model, inputs, SETTINGS, max_new_tokens=2)
    assert snapshot_of_used(model, inputs) == before


def test_bad_input_is_refused() -> None:
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, ROWS)
    with pytest.raises(ValueError, match="greedily"):
        decode_settings(model, inputs, SETTINGS, num_beams=2)
    with pytest.raises(ValueError, match="one layer at a time"):
        decode_settings(model, inputs, [*SETTINGS, Setting(LAYER + 1, alpha_max=1.0)])
    with attach(model, RudderConfig(layer=1)), pytest.raises(ValueError, match="steered by RUDDER already"):
        decode_settings(model, inputs, SETTINGS)
    assert decode_settings(model, inputs, []) == []
    with pytest.raises(ValueError, match="alpha_max"):
        Setting(LAYER, alpha_max=-1.0)
