"""Tokens and scores of the package against the slow float64 reference, over families and ways of decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rudder_hf import RudderConfig, attach
from tests.support.reference import Reference, reference_generate
from tests.support.zoo import FAMILIES
from tests.support.zoo.base import MISSING, Family, Row
from tests.support.zoo.batches import left_pad, random_pixels, text_ids

NAMED = ("llava", "idefics2", "instructblip", "qwen2_5_vl")
OTHERS = ("gemma3", "blip-2", "mllama", "lfm2_vl", "glm4v", "qwen3_vl_moe", "chameleon-swin", "molmo2", "llava_next")
SAMPLE = tuple(name for name in NAMED + OTHERS if name not in MISSING)
REFUSED = ("git", "blip")
STEERED = tuple(name for name in FAMILIES if name not in REFUSED)

BATCH = (Row(1, 4), Row(2, 9), Row(3, 6))
ALONE = (Row(2, 9),)
NEW_TOKENS = 7
SETTINGS: dict[str, Any] = {"alpha_max": 6.0, "k": 5.0}
FIRST_TOKEN = {"steer_first_token": True}
PER_ROW = {
    "alpha_max": [0.0, 4.0, 9.0],
    "k": [1.0, 5.0, 9.0],
    "c": [1.0, 0.5, 1.5],
    "g_min": [0.05, 0.2, 0.0],
    "g_max": [1.0, 0.8, 0.9],
}


@functools.cache
def built(name: str) -> Any:
    return FAMILIES[name].build()


def middle_layer(family: Family) -> int:
    """A layer with self-attention, not the last, so that what is added has layers to act on."""
    count = len(built(family.name).get_submodule(family.layers))
    usable = [index for index in range(count) if index not in family.no_attention_layers]
    return usable[-2] if len(usable) > 1 else usable[0]


def rows_for(family: Family) -> tuple[Row, ...]:
    return ALONE if "padding" in family.notes else BATCH


Prompts = tuple[Row, ...] | dict[str, Any]


def inputs_of(name: str, prompts: Prompts) -> dict[str, Any]:
    """The inputs of rows; inputs are taken as they are."""
    return prompts if isinstance(prompts, dict) else FAMILIES[name].inputs(built(name), prompts)


def steered(name: str, prompts: Prompts, settings: dict[str, Any], **options: Any) -> Any:
    """What the package generates; settings with a value for each row are those of the call."""
    per_row = {key: value for key, value in settings.items() if isinstance(value, list)}
    shared = {key: value for key, value in (SETTINGS | settings).items() if key not in per_row}
    with attach(built(name), RudderConfig(layer=middle_layer(FAMILIES[name]), **shared)):
        return built(name).generate(
            **inputs_of(name, prompts),
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_scores=True,
            **{"rudder": per_row, **options},
        )


def slow(name: str, prompts: Prompts, settings: dict[str, Any], **options: Any) -> tuple[Any, Reference]:
    family, model = FAMILIES[name], built(name)
    text = model.config.get_text_config()
    reference = Reference(
        layer=middle_layer(family),
        multiplier=float(getattr(text, "residual_multiplier", 1.0)),
        use_cache="no_cache" in family.notes,
        image_tokens=tuple(
            getattr(model.config, key)
            for key in ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
            if isinstance(getattr(model.config, key, None), int)
        ),
        **(SETTINGS | settings),
    )
    options["max_new_tokens"] = NEW_TOKENS
    return reference_generate(family, model, inputs_of(name, prompts), reference, **options), reference


def assert_same(fast: Any, slow: Any, atol: float = 5e-3) -> None:
    assert fast.sequences.tolist() == slow.sequences.tolist()
    for ours, theirs in zip(fast.scores, slow.scores, strict=True):
        # Some models forbid tokens with the lowest number of their dtype.
        ours, theirs = ours.double().clamp_min(-1e9), theirs.double().clamp_min(-1e9)
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=atol)


class Forced:
    """A logits processor that lets given tokens through alone, and keeps the scores that they would have had."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self.scores: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = torch.full_like(scores, -torch.inf)
        chosen[torch.arange(len(self.tokens)), self.tokens[:, len(self.scores)]] = 0.0
        self.scores.append(scores.double().clone())
        return chosen


@pytest.mark.parametrize("name", STEERED)
def test_greedy_batch_equals_reference(name: str) -> None:
    rows = rows_for(FAMILIES[name])
    fast = steered(name, rows, {}, output_rudder=True)
    expected, reference = slow(name, rows, {})
    # Nemotron-H's state-space layers compute in float32 in the float64 copy too.
    assert_same(fast, expected, atol=2e-2 if name == "nemotron_h_omni" else 5e-3)
    for row in range(len(rows)):
        card = torch.tensor(reference.cards[row])
        torch.testing.assert_close(fast.rudder.card[row].double(), card.double(), rtol=1e-3, atol=1e-4)
        for token in range(1, NEW_TOKENS):
            assert fast.rudder.gate[row, token].item() == pytest.approx(reference.gates[row, token], abs=2e-3)
        for token in range(NEW_TOKENS):
            similarity = fast.rudder.similarity[row, token].item()
            assert similarity == pytest.approx(reference.similarities[row, token], abs=2e-3)


@pytest.mark.parametrize("name", STEERED)
def test_steering_matters_and_zero_strength_is_the_base_bit_for_bit(name: str) -> None:
    family, model, rows = FAMILIES[name], built(name), rows_for(FAMILIES[name])
    plain = model.generate(
        **family.inputs(model, rows), max_new_tokens=NEW_TOKENS, return_dict_in_generate=True, output_scores=True
    )
    for off in (steered(name, rows, {"alpha_max": 0.0}), steered(name, rows, {}, rudder=False)):
        assert torch.equal(off.sequences, plain.sequences)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(off.scores, plain.scores, strict=True))
    on = steered(name, rows, {})
    assert torch.equal(on.scores[0], plain.scores[0]), "the first token must not change by default"
    assert not torch.allclose(on.scores[1], plain.scores[1], atol=1e-2)


@pytest.mark.parametrize("name", [name for name in STEERED if "padding" not in FAMILIES[name].notes])
def test_a_row_in_a_padded_batch_equals_the_row_alone(name: str) -> None:
    together = steered(name, BATCH, {}, output_rudder=True)
    for index, row in enumerate(BATCH):
        alone = steered(name, (row,), {}, output_rudder=True)
        assert together.sequences[index, -NEW_TOKENS:].tolist() == alone.sequences[0, -NEW_TOKENS:].tolist()
        for ours, theirs in zip(together.scores, alone.scores, strict=True):
            torch.testing.assert_close(ours[index], theirs[0], rtol=1e-3, atol=3e-3)
        torch.testing.assert_close(together.rudder.card[index], alone.rudder.card[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(together.rudder.gate[index], alone.rudder.gate[0], rtol=1e-3, atol=1e-3)


VARIANTS: dict[str, dict[str, Any]] = {
    "add": {"mode": "add", "alpha_max": 3.0},
    "norm pool": {"pool": "norm"},
    "norm cap": {"norm_cap": 2.0},
    "norm cap in add": {"mode": "add", "norm_cap": 2.0},
    "first token": {"steer_first_token": True},
    "first token in add": {"steer_first_token": True, "mode": "add", "alpha_max": 3.0},
    "gate range": {"g_min": 0.4, "g_max": 0.6, "c": 0.5, "k": 8.0},
}


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_equal_reference(name: str, variant: str) -> None:
    assert_same(steered(name, BATCH, VARIANTS[variant]), slow(name, BATCH, VARIANTS[variant])[0])


@pytest.mark.parametrize("name", [name for name in SAMPLE if name not in ("mllama",)])
@pytest.mark.parametrize("span", ["text", "image"])
def test_spans_equal_reference(name: str, span: str) -> None:
    assert_same(steered(name, BATCH, {"span": span}), slow(name, BATCH, {"span": span})[0])


@pytest.mark.parametrize("name", SAMPLE)
def test_settings_per_row_equal_reference_and_separate_runs(name: str) -> None:
    together = steered(name, BATCH, PER_ROW)
    assert_same(together, slow(name, BATCH, PER_ROW)[0])
    for index in range(len(BATCH)):
        run = steered(name, BATCH, {}, rudder={key: values[index] for key, values in PER_ROW.items()})
        assert together.sequences[index].tolist() == run.sequences[index].tolist()
        for ours, theirs in zip(together.scores, run.scores, strict=True):
            # Experts are computed over all tokens routed to them, so other rows can shift the last bits.
            torch.testing.assert_close(ours[index], theirs[index], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SAMPLE if "beams" not in FAMILIES[name].notes])
@pytest.mark.parametrize("settings", [{}, FIRST_TOKEN, PER_ROW], ids=["default", "first token", "rows"])
def test_beam_search_equals_reference(name: str, settings: dict[str, Any]) -> None:
    beams = {"num_beams": 3, "num_return_sequences": 2}
    fast = steered(name, BATCH, settings, **beams, output_rudder=True)
    expected, _ = slow(name, BATCH, settings, **beams)
    assert fast.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(
        fast.sequences_scores.double(), expected.sequences_scores.double(), rtol=1e-3, atol=2e-3
    )
    assert fast.rudder.gate.shape == (6, NEW_TOKENS)
    # The trace follows each returned sequence through the beams: a greedy run that is forced along it has the same.
    rows = tuple(row for row in BATCH for _ in range(2))
    doubled = {key: [value[n // 2] for n in range(6)] if key in PER_ROW else value for key, value in settings.items()}
    forced = Forced(fast.sequences[:, -NEW_TOKENS:])
    replay = steered(name, rows, doubled, logits_processor=[forced], output_rudder=True)
    for part in ("card", "gate", "similarity"):
        torch.testing.assert_close(getattr(fast.rudder, part), getattr(replay.rudder, part), rtol=1e-3, atol=1e-3)
    uncached = steered(name, BATCH, settings, **beams, output_rudder=True, use_cache=False)
    torch.testing.assert_close(uncached.rudder.gate, fast.rudder.gate, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SAMPLE)
def test_sampling_with_return_sequences_equals_its_rows_alone(name: str) -> None:
    """The scores of a sampled path equal those of the reference forced along the same path."""
    options = {"do_sample": True, "temperature": 0.7, "top_k": 0, "num_return_sequences": 2}
    torch.manual_seed(7)
    fast = steered(name, BATCH, {}, **options)
    torch.manual_seed(7)
    assert torch.equal(fast.sequences, steered(name, BATCH, {}, **options).sequences)
    paths = fast.sequences[:, -NEW_TOKENS:]
    assert len({tuple(path) for path in paths.tolist()}) > len(BATCH), "the two samples of a prompt should differ"
    doubled = tuple(row for row in BATCH for _ in range(2))
    slow(name, doubled, {}, logits_processor=[forced := Forced(paths)])
    for ours, theirs in zip(fast.scores, forced.scores, strict=True):
        torch.testing.assert_close(ours.double(), theirs / 0.7, rtol=2e-3, atol=1e-2)


# A note of a family's names the way of decoding that it does not have.
OTHER_WAYS: dict[str, tuple[tuple[str, ...], tuple[Row, ...], dict[str, Any]]] = {
    "static": (SAMPLE, BATCH, {"cache_implementation": "static"}),
    "no_cache": (SAMPLE, BATCH, {"use_cache": False}),
    "lookup": (
        tuple(name for name in STEERED if not FAMILIES[name].loop),
        ALONE,
        {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
    ),
    # The assistant is the model itself, unsteered: it often proposes what steering then rejects.
    "assisted": (("llava", "idefics2", "qwen2_5_vl", "gemma3"), ALONE, {}),
}


@pytest.mark.parametrize(
    ("way", "name"),
    [(way, name) for way, (names, *_) in OTHER_WAYS.items() for name in names if way not in FAMILIES[name].notes],
)
@pytest.mark.parametrize("settings", [{}, FIRST_TOKEN], ids=["default", "first token"])
def test_other_ways_to_decode_equal_greedy(way: str, name: str, settings: dict[str, Any]) -> None:
    _, rows, options = OTHER_WAYS[way]
    expected = steered(name, rows, settings, output_rudder=True)
    options = options or {"assistant_model": FAMILIES[name].build()}
    output = steered(name, rows, settings, **options, output_rudder=True)
    assert_same(output, expected)
    torch.testing.assert_close(output.rudder.gate, expected.rudder.gate, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in STEERED if "multi_image" not in FAMILIES[name].notes])
def test_several_images_in_one_prompt_equal_reference(name: str) -> None:
    rows = (Row(1, 5, images=2),)
    assert_same(steered(name, rows, {}), slow(name, rows, {})[0], atol=2e-2)


# Video frames in a prompt: steered like images, exactly as the slow reference steers them


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


@pytest.mark.parametrize("span", ["prompt", "image"])
@pytest.mark.parametrize(
    ("name", "inputs"), [("qwen2_5_vl", qwen_video), ("qwen2_vl", qwen_video), ("video_llava", llava_video)]
)
def test_video_prompts_equal_reference(name: str, inputs: Callable[[Any], dict[str, Any]], span: str) -> None:
    batch = inputs(built(name))
    out = steered(name, batch, {"span": span})
    assert_same(out, slow(name, batch, {"span": span})[0])
    assert not torch.allclose(out.scores[1], steered(name, batch, {}, rudder=False).scores[1], atol=1e-2)
