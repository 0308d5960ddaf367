"""What a `generate` call may ask for: bad input, prompts without an image, embeddings, chunks, layers that move."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import StoppingCriteriaList

from rudder_hf import (
    RudderConfig,
    RudderForConditionalGeneration,
    RudderWarning,
    attach,
    detach,
)
from rudder_hf.core.call import Call
from tests.support.helpers import with_dtype
from tests.support.zoo import FAMILIES
from tests.support.zoo.base import Row

OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}


@pytest.fixture(scope="module")
def llava() -> Any:
    return FAMILIES["llava"].build()


@pytest.fixture
def steered(llava: Any) -> Iterator[Any]:
    with attach(llava, RudderConfig(layer=1, alpha_max=6.0)) as handle:
        llava.rudder_for_test = handle
        yield llava
    del llava.rudder_for_test


def inputs(model: Any, *rows: Row) -> dict[str, Any]:
    return FAMILIES["llava"].inputs(model, rows or (Row(1, 5),))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.scores, other.scores, strict=True))


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rudder": {"alpha_max": [1.0, 2.0, 3.0]}}, ValueError, "3 values for a batch of 1"),
    ({"rudder": {"strength": 1.0}}, ValueError, "not a RUDDER setting"),
    ({"rudder": 5}, TypeError, "rudder=5"),
    ({"prefill_chunk_size": 4}, ValueError, "drops the images"),
    ({"cache_implementation": "paged"}, ValueError, "continuous batching"),
    ({"token_healing": True}, ValueError, "token_healing"),
    ({"output_rudder": True, "return_dict_in_generate": False}, ValueError, "return_dict_in_generate=True"),
    ({"rudders": 1}, ValueError, "rudders"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_CALLS)
def test_bad_calls_are_refused_and_leave_the_model_usable(
    steered: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = steered.generate(**inputs(steered), **OPTIONS)
    with pytest.raises(error, match=message):
        steered.generate(**inputs(steered), **(OPTIONS | options))
    assert same(steered.generate(**inputs(steered), **OPTIONS), before)


def test_which_rows_have_an_image(llava: Any) -> None:
    ids, embeds = torch.tensor([[1, 7, 2], [1, 3, 2]]), torch.zeros(2, 3, 8)

    def rows(image_tokens: tuple[int, ...], **arguments: Any) -> list[bool]:
        return Call(llava, (), arguments).rows_with_image(image_tokens)

    assert rows((7,), input_ids=ids, pixel_values=embeds) == [True, False]
    assert rows((7,), input_ids=ids, inputs_embeds=embeds) == [True, False]
    assert rows((7,), input_ids=ids) == [False, False], "placeholders, but nothing to put there"
    assert rows((8,), input_ids=ids, pixel_values=embeds) == [True, True], "images that need no placeholder"
    assert rows((), input_ids=ids, pixel_values=embeds) == [True, True]
    assert rows((), input_ids=ids) == [False, False]
    assert rows((), input_ids=ids, inputs_embeds=embeds) == [True, True], "embeddings do not tell"
    assert rows((7,), inputs_embeds=embeds) == [True, True]
    assert rows((7,), input_ids=ids, image_attention_mask=torch.tensor([[0, 0], [0, 1]])) == [False, True]


@pytest.mark.parametrize("way", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted_decoding_of_embeddings_is_refused(llava: Any, way: str) -> None:
    """transformers would drop the candidates without a word."""
    arguments = {"inputs_embeds": torch.zeros(1, 3, 8), way: llava if way == "assistant_model" else 2}
    with pytest.raises(ValueError, match="prompted with embeddings"):
        Call(llava, (), arguments).refuse_unsupported()
    Call(llava, (), {**arguments, "inputs_embeds": None}).refuse_unsupported()


@pytest.mark.parametrize("name", ["llava", "instructblip"])
def test_an_answer_that_could_not_change_is_said_to(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """One token, or one and the end: the first token is not steered, so that RUDDER had no say."""
    model = FAMILIES[name].build()
    prompt = FAMILIES[name].inputs(model, [Row(1, 5)])
    with attach(model, RudderConfig(layer=1, alpha_max=6.0)):
        second = int(model.generate(**prompt, max_new_tokens=2)[0, -1])
        with pytest.warns(RudderWarning, match=r"could not change it.*steer_first_token"):
            model.generate(**prompt, max_new_tokens=1)
        with pytest.warns(RudderWarning, match="could not change it"):
            model.generate(**prompt, max_new_tokens=4, eos_token_id=second)
        recwarn.clear()
        model.generate(**prompt, max_new_tokens=2, eos_token_id=second + 1)
        for rudder in (False, {"steer_first_token": True}, {"alpha_max": 0.0}):
            model.generate(**prompt, max_new_tokens=1, rudder=rudder)
    assert not [one for one in recwarn if issubclass(one.category, RudderWarning)]


def test_a_prompt_without_image_is_left_unsteered_with_one_warning(steered: Any) -> None:
    text = inputs(steered, Row(1, 6, images=0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet = steered.generate(**text, **OPTIONS)
    assert [str(w.message)[:25] for w in caught if w.category is RudderWarning] == ["The prompt has no image, "]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RudderWarning)
        plain = steered.generate(**text, **OPTIONS, rudder=False)
    assert same(quiet, plain)
    forced = steered.generate(**text, **OPTIONS, rudder={"force": True})
    assert not same(forced, plain)


@pytest.mark.parametrize("name", ["llava", "idefics", "idefics2", "qwen2_5_vl", "gemma3", "kosmos-2"])
def test_in_a_mixed_batch_only_rows_with_an_image_are_steered(name: str) -> None:
    family = FAMILIES[name]
    model = family.build()
    mixed = family.inputs(model, [Row(1, 6, images=0), Row(2, 5)])
    with attach(model, RudderConfig(layer=1, alpha_max=6.0)):
        with pytest.warns(RudderWarning, match="1 of 2 prompts") as caught:
            on = model.generate(**mixed, **OPTIONS)
        off = model.generate(**mixed, **OPTIONS, rudder=False)
    assert [warning.filename for warning in caught if warning.category is RudderWarning] == [__file__]
    for ours, theirs in zip(on.scores[1:], off.scores[1:], strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert not torch.equal(ours[1], theirs[1])


def test_only_rows_that_were_to_be_steered_count_as_without_image(steered: Any) -> None:
    mixed = inputs(steered, Row(1, 6, images=0), Row(2, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RudderWarning)
        steered.generate(**mixed, **OPTIONS, rudder={"alpha_max": [0.0, 6.0]})
    with pytest.warns(RudderWarning, match="The prompt has no image"):
        steered.generate(**mixed, **OPTIONS, rudder={"alpha_max": [6.0, 0.0]})


def test_the_layer_itself_does_not_see_the_state(steered: Any) -> None:
    """A layer of custom code may pass its keyword arguments on to what knows no such argument."""
    seen: list[set[str]] = []
    layer = steered.model.language_model.layers[1]
    hook = layer.register_forward_pre_hook(lambda module, args, kwargs: seen.append(set(kwargs)), with_kwargs=True)
    steered.generate(**inputs(steered), **OPTIONS)
    hook.remove()
    assert len(seen) == OPTIONS["max_new_tokens"]
    assert all(names and "rudder_state" not in names for names in seen)


def test_chunked_prefill_of_forced_text_equals_one_prefill(steered: Any) -> None:
    text = inputs(steered, Row(1, 11, images=0))
    for settings in ({"force": True}, {"force": True, "steer_first_token": True}):
        whole = steered.generate(**text, **OPTIONS, rudder=settings, output_rudder=True)
        chunks = steered.generate(**text, **OPTIONS, rudder=settings, output_rudder=True, prefill_chunk_size=4)
        torch.testing.assert_close(chunks.rudder.card, whole.rudder.card, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(chunks.rudder.gate, whole.rudder.gate, rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(chunks.scores, whole.scores, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_embeddings_instead_of_ids(steered: Any) -> None:
    given = inputs(steered)
    expected = steered.generate(**given, **OPTIONS, output_rudder=True)
    features = steered.get_image_features(pixel_values=given["pixel_values"]).pooler_output
    embeds = steered.get_input_embeddings()(given["input_ids"])
    mask = (given["input_ids"] == steered.config.image_token_id).unsqueeze(-1)
    embeds = embeds.masked_scatter(mask, torch.cat(list(features)))
    out = steered.generate(inputs_embeds=embeds, attention_mask=given["attention_mask"], **OPTIONS, output_rudder=True)
    assert out.sequences.tolist() == expected.sequences[:, -4:].tolist()
    torch.testing.assert_close(out.rudder.gate, expected.rudder.gate, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="needs input_ids"):
        steered.generate(inputs_embeds=embeds, **OPTIONS, rudder={"span": "text"})


def test_positional_ids_are_understood(steered: Any) -> None:
    given = inputs(steered)
    ids = given.pop("input_ids")
    by_name = steered.generate(input_ids=ids, **given, **OPTIONS)
    assert same(steered.generate(ids, **given, **OPTIONS), by_name)


@pytest.mark.parametrize("preset", ["qwen2.5-vl-7b", "llava-1.5-13b"])
def test_uncalibrated_presets_say_so(preset: str, llava: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="rudder_hf"):
        attach(llava, preset, layer=1).remove()
    assert [record.message for record in caplog.records if "not calibrated" in record.message]


def test_the_trace_of_an_unsteered_call(steered: Any) -> None:
    """It shows what was read, and that nothing was added; so does the first token's column, steered from then on."""
    given = inputs(steered, Row(1, 4), Row(2, 7))
    off = steered.generate(**given, **OPTIONS, output_rudder=True, rudder=False)
    on = steered.generate(**given, **OPTIONS, output_rudder=True, rudder={"steer_first_token": True}).rudder
    assert not off.rudder.gate.any()
    assert not off.rudder.push.any()
    assert same(off, steered.generate(**given, **OPTIONS, rudder=False))
    assert (on.gate > 0).all()
    torch.testing.assert_close(off.rudder.card, on.card)
    torch.testing.assert_close(off.rudder.similarity[:, 0], on.similarity[:, 0])


def test_padding_after_a_stopping_criterion_is_nan_in_the_trace(steered: Any) -> None:
    given = inputs(steered, Row(1, 4), Row(2, 7))
    width = given["input_ids"].shape[1]

    def stop(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor([ids.shape[1] - width >= 2, False])

    options = OPTIONS | {"eos_token_id": 2, "pad_token_id": 0, "output_rudder": True}
    out = steered.generate(**given, **options, stopping_criteria=StoppingCriteriaList([stop]))
    assert out.rudder.gate.isnan().tolist() == [[False, False, True, True], [False] * 4]


def test_none_unsets_an_option_of_the_generation_config(steered: Any) -> None:
    given = inputs(steered)
    ends = int(steered.generate(**given, **OPTIONS).sequences[0, -3])
    steered.generation_config.eos_token_id = ends
    try:
        free = steered.generate(**given, **OPTIONS, eos_token_id=None, output_rudder=True)
        assert free.sequences.shape[1] == given["input_ids"].shape[1] + 4
        assert not free.rudder.gate.isnan().any()
        ended = steered.generate(**given, **OPTIONS, eos_token_id=torch.tensor(ends), output_rudder=True)
        assert ended.rudder.gate.shape[1] == ended.sequences.shape[1] - given["input_ids"].shape[1] < 4
    finally:
        steered.generation_config.eos_token_id = None


def test_a_lost_handle_can_be_detached(llava: Any) -> None:
    attach(llava, RudderConfig(layer=1))
    with pytest.raises(ValueError, match=r"detach\(model\)"):
        attach(llava, RudderConfig(layer=1))
    detach(llava)
    detach(llava)
    assert "generate" not in vars(llava)


def test_what_is_no_config_is_refused(llava: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"needs settings.*rudder calibrate --model.*layer=..., alpha_max=.*starting point is layer=3 ",
    ):
        attach(llava)
    with pytest.raises(TypeError, match="has to be a RudderConfig, the name of a preset or a dictionary of settings"):
        attach(llava, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'alfa_max' is not a RUDDER setting"):
        attach(llava, layer=1, alfa_max=2.0)
    with pytest.raises(TypeError, match="has to be a loaded model"):
        RudderForConditionalGeneration.from_base(3, RudderConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "strength"), [(torch.float32, 1e4), (torch.float16, 7e4)])
def test_a_push_far_longer_than_the_hidden_state_is_warned_of(dtype: torch.dtype, strength: float) -> None:
    """Also one that half precision cannot hold."""
    model = FAMILIES["llava"].build().to(dtype)
    given = with_dtype(inputs(model), dtype)
    with attach(model, RudderConfig(layer=1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.generate(**given, **OPTIONS, rudder={"alpha_max": 0.01})
        with pytest.warns(RudderWarning, match="more than twice as long"):
            model.generate(**given, **OPTIONS, rudder={"alpha_max": strength})


def test_loading_a_model_as_settings_says_what_to_do(tmp_path: Path) -> None:
    FAMILIES["llava"].build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds a model, not RUDDER settings.*from_base"):
        RudderForConditionalGeneration.from_pretrained(tmp_path)


def test_the_config_names_what_is_steered_and_its_revision(tmp_path: Path) -> None:
    FAMILIES["llava"].build().save_pretrained(tmp_path / "mine")
    # A preset of layer 1.
    model = RudderForConditionalGeneration.from_base(str(tmp_path / "mine"), "instructblip-vicuna-7b", revision="main")
    assert model.config.base_model_name_or_path == str(tmp_path / "mine")
    assert model.config.base_model_revision == "main"
    model.save_pretrained(tmp_path / "settings")
    again = RudderForConditionalGeneration.from_pretrained(tmp_path / "settings", revision="v1")
    assert again.config.base_model_revision == "main"
    assert len(again.get_decoder().layers) == 4
