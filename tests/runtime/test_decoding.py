"""Sampling that belongs to the sample, and the likelihood of answers under the unsteered model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TopPLogitsWarper

from rudder_hf import attach
from rudder_hf.runtime.answers import (
    STEP_BY_STEP,
    Decoding,
    SampleNoise,
    check_likelihood,
    gumbel_noise,
    log_likelihoods,
    sample_seed,
    without_prompt,
)
from rudder_hf.runtime.errors import InputError
from tests.support import helpers
from tests.support.zoo import FAMILIES
from tests.support.zoo.base import IMAGE

CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=30, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=5, unique=True), step=st.integers(0, 600), more=st.integers(0, 9))
def test_noise_depends_on_seed_step_and_token_alone(seeds: list[int], step: int, more: int) -> None:
    together = gumbel_noise(seeds, step, 20, CPU)
    assert torch.isfinite(together).all()
    for row, seed in enumerate(seeds):
        # Neither the other rows nor the size of the vocabulary matter.
        assert torch.equal(gumbel_noise([seed], step, 20 + more, CPU)[0, :20], together[row])
    assert not torch.equal(gumbel_noise(seeds, step + 1, 20, CPU), together)


def test_draws_follow_the_nucleus() -> None:
    """Exact sampling: frequencies of the warped distribution, and nothing outside of the nucleus."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -1.2, -4.0, 0.7])
    count = 20_000
    ids, scores = torch.zeros(count, 3, dtype=torch.long), logits.expand(count, -1)
    warped = TopPLogitsWarper(0.9)(ids, scores)
    expected = torch.softmax(warped[0], dim=-1)
    noise = SampleNoise([sample_seed(0, str(number)) for number in range(count)])
    for _ in range(2):  # two steps, each as good as the other
        drawn = torch.bincount(noise(ids, warped).argmax(-1), minlength=8) / count
        assert (drawn[expected == 0] == 0).all()
        assert ((drawn - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-12).all()
        ids = torch.cat([ids, ids[:, :1]], dim=1)


def test_noise_of_steps_tokens_and_seeds_is_uncorrelated() -> None:
    seeds = [sample_seed(1, str(number)) for number in range(300)]
    first, second = gumbel_noise(seeds, 0, 300, CPU), gumbel_noise(seeds, 1, 300, CPU)
    near = gumbel_noise([seed + 1 for seed in seeds], 0, 300, CPU)
    pairs = [(first, second), (first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), (first, near)]
    for one, other in pairs:
        assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.02


def test_seeds_of_samples_differ_and_rows_must_fit_them() -> None:
    seeds = {sample_seed(seed, f"{number}") for seed in range(3) for number in range(1000)}
    assert len(seeds) == 3000
    assert all(0 <= seed < 2**63 for seed in seeds)
    with pytest.raises(ValueError, match="3 rows but 2 seeds"):
        SampleNoise([1, 2])(torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "magic"}, "greedy, beam, nucleus"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"num_beams": 0}, "at least 1"),
        ({"top_p": 0.0}, "top_p"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_decoding_is_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Decoding(**{"name": "nucleus", "max_new_tokens": 4, **options})  # type: ignore[arg-type]


def test_only_options_that_matter_are_recorded() -> None:
    assert Decoding("greedy", 8).record() == {"name": "greedy", "max_new_tokens": 8}
    assert Decoding("beam", 8).record() == {"name": "beam", "max_new_tokens": 8, "num_beams": 5}
    assert Decoding("nucleus", 8).record() == {
        "name": "nucleus", "max_new_tokens": 8, "top_p": 0.9, "temperature": 1.0,
    }  # fmt: skip


# One of each way in which prompts and answers reach a model: placeholders, embeddings, cross-attention, positions in
# three dimensions, images marked by token types.
@pytest.mark.parametrize("name", ["llava", "instructblip", "mllama", "qwen2_5_vl", "gemma3", "idefics2"])
def test_likelihood_is_that_of_decoding_token_by_token(name: str) -> None:
    family = FAMILIES[name]
    model = family.build()
    inputs = family.inputs(model, [helpers.ROW, helpers.OTHER_ROW])
    output = model.generate(
        **inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False, logits_processor=LogitsProcessorList(),
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    new = without_prompt(output.sequences, inputs["input_ids"])[:, -6:]
    chances = torch.stack([torch.log_softmax(step.float(), -1) for step in output.logits], dim=1)
    chosen = chances.gather(2, new[:, :, None])[:, :, 0]
    found = log_likelihoods(model, inputs, [new[0].tolist(), new[1, :4].tolist()])
    assert found == pytest.approx([float(chosen[0].sum()), float(chosen[1, :4].sum())], abs=1e-3)
    assert log_likelihoods(model, inputs, [[], []]) == [0.0, 0.0]
    if name == "llava":  # that of the unsteered model, also while RUDDER is attached
        with attach(model, helpers.settings(alpha_max=50.0)):
            assert log_likelihoods(model, inputs, [new[0].tolist(), new[1, :4].tolist()]) == found


def test_a_placeholder_in_an_answer_is_no_image() -> None:
    """Models can write the token that stands for images: it is scored as any other word, and read as none."""
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, [helpers.ROW])
    last = int(inputs["input_ids"][0, -1])
    chances = {}
    for words, token in (((), 20), ((20,), IMAGE), ((20, last), 21)):
        ids = torch.cat([inputs["input_ids"], torch.tensor([words], dtype=torch.long)], dim=1)
        logits = model(**{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0, -1]
        chances[token] = float(torch.log_softmax(logits.detach().float(), -1)[token])
    assert log_likelihoods(model, inputs, [[20, IMAGE, 21]]) == pytest.approx([sum(chances.values())], abs=1e-3)


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_choosing_by_likelihood_is_refused_where_one_forward_does_not_give_it(name: str) -> None:
    with pytest.raises(InputError, match=f"does not give for a {name} model.*Choose on images with annotations"):
        check_likelihood(FAMILIES[name].build())
