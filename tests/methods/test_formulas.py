"""Each method computes its formula: compared, step by step, with a slow computation from stock forwards.

The slow side forwards prompt and answer anew for every token, without any cache, on a left-padded batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax, softplus

from rudder_hf import RudderConfig, UnsupportedModelError
from rudder_hf.methods import get
from rudder_hf.methods.base import sample_normal
from rudder_hf.methods.controls import ShuffledCard, ShuffledContrast
from rudder_hf.methods.dola import candidate_layers
from rudder_hf.methods.vista import late_blocks
from rudder_hf.methods.vti import textual_directions
from tests.support.helpers import LAYER, OTHER_ROW, ROW, direction, prompt_updates, settings
from tests.support.methods import (
    DIRECTIONS,
    DONORS,
    IDS,
    LAYERS,
    batch,
    built,
    changed_outputs,
    check_steps,
    every_family,
    image_free,
    method,
    run,
    slow_beam_search,
    stock,
    stock_logits,
)
from tests.support.zoo import FAMILIES, Row
from tests.support.zoo.base import IMAGE

Expected = Callable[[Tensor], Tensor]
"""The logits that follow given answer tokens."""


def cut(scores: Tensor, by: Tensor, share: float) -> Tensor:
    """Minus infinity where a token is less than `share` times as likely as the likeliest."""
    probabilities = softmax(by, dim=-1)
    return scores.masked_fill(probabilities < share * probabilities.max(dim=-1, keepdim=True).values, -math.inf)


def noisy(inputs: dict[str, Any], step: int, seed: int) -> dict[str, Any]:
    """Diffusion by its definition, one step after the other, with the package's random numbers."""
    kept = 1.0
    for index in range(step + 1):
        kept *= 1.0 - (1.0 / (1.0 + math.exp(6.0 - 12.0 * index / 999.0)) * (0.005 - 1e-5) + 1e-5)
    pixels = inputs["pixel_values"]
    parts = [half[0, 0] if pixels.dim() == 5 else half for half in pixels.chunk(2)]
    tile = [0] if pixels.dim() == 5 else []
    drawn = [
        sample_normal(part.shape, seed, name, "pixel_values", 0, *tile) for part, name in zip(parts, IDS, strict=True)
    ]
    noise = torch.cat(drawn).view_as(pixels)
    return {**inputs, "pixel_values": math.sqrt(kept) * pixels + math.sqrt(1.0 - kept) * noise}


def contrasted(family: str, inputs: dict[str, Any]) -> Expected:
    """VCD with alpha 0.8."""
    model, other = built(family), noisy(inputs, 500, 3)

    def expected(answer: Tensor) -> Tensor:
        clean = stock_logits(model, inputs, answer)
        return cut(1.8 * clean - 0.8 * stock_logits(model, other, answer), clean, 0.1)

    return expected


def contrasted_layers(family: str, inputs: dict[str, Any]) -> Expected:
    """DoLa with all layers."""
    model = built(family)
    head = model.get_output_embeddings()

    @torch.no_grad()
    def expected(answer: Tensor) -> Tensor:
        result = stock(model, inputs, answer, output_hidden_states=True)
        rows = []
        for row, mature in enumerate(result.logits[0]):
            p = softmax(mature, dim=-1)
            candidates = [head(result.hidden_states[0][layer][row, -1]) for layer in range(4)]
            distances = []
            for early in candidates:
                q = softmax(early, dim=-1)
                mean = 0.5 * (p + q)
                first, second = (kl_div(other.log(), mean, reduction="none").mean() for other in (p, q))
                distances.append(float(0.5 * (first + second)))
            chosen = candidates[distances.index(max(distances))]
            rows.append(cut(log_softmax(mature, dim=-1) - log_softmax(chosen, dim=-1), mature, 0.01))
        return torch.stack(rows)

    return expected


def test_dola_names_the_published_layers() -> None:
    untied = built("llava")
    assert candidate_layers(untied, 32, "low") == [0, 2, 4, 6, 8, 10, 12, 14]
    assert candidate_layers(untied, 32, "high") == [16, 18, 20, 22, 24, 26, 28, 30]
    assert candidate_layers(untied, 60, "low") == list(range(0, 20, 2))
    assert candidate_layers(untied, 60, "high") == list(range(40, 60, 2))


def amplifying(alpha: float, image: Tensor, first_query: int, calls: list[int], vision: Any) -> Any:
    """Eager attention typed from the paper, for a forward of the whole sequence; `vision` for vision towers."""

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        if not hasattr(module, "layer_idx"):
            return vision(module, query, key, value, attention_mask, **kwargs)
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        scores = query @ key.transpose(2, 3) * kwargs["scaling"] + attention_mask
        if module.layer_idx >= 2:
            calls.append(module.layer_idx)
            for row in range(scores.shape[0]):
                for column in image[row].nonzero().flatten().tolist():
                    scores[row, :, first_query:, column] += alpha * scores[row, :, first_query:, column].abs()
        return (softmax(scores, dim=-1) @ value).transpose(1, 2), None

    return attend


@every_family
@pytest.mark.parametrize("first_token", [True, False])
def test_pai_attention(family: str, first_token: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = FAMILIES[family].build(), batch(family)
    # Without effect of the guidance, which returns log-probabilities
    tested = method("pai", gamma=1.0, cut_off=0.0, first_token=first_token)
    output = run(tested, model, inputs, output_logits=True)
    length = inputs["input_ids"].shape[1]
    calls: list[int] = []
    model.set_attn_implementation("eager")
    source = sys.modules[type(model.get_submodule(FAMILIES[family].layers)[0].self_attn).__module__]
    first_query = length - 1 if first_token else length
    attend = amplifying(2.0, inputs["input_ids"] == IMAGE, first_query, calls, source.eager_attention_forward)
    monkeypatch.setattr(source, "eager_attention_forward", attend)
    check_steps(output, length, lambda answer: log_softmax(stock_logits(model, inputs, answer), dim=-1))
    assert calls


def guided(family: str, inputs: dict[str, Any]) -> Expected:
    """PAI's guidance alone, with gamma 1.7."""
    model = built(family)
    loop, text = image_free(FAMILIES[family], model, inputs)

    def expected(answer: Tensor) -> Tensor:
        s = log_softmax(stock_logits(model, inputs, answer), dim=-1)
        u = log_softmax(stock_logits(loop, text, answer), dim=-1)
        return cut(1.7 * (s - u) + u, s, 0.1)

    return expected


def turned(x: Tensor, v: Tensor, strength: Tensor | float) -> Tensor:
    return x.norm(dim=-1, keepdim=True) * torch.nn.functional.normalize(
        x / x.norm(dim=-1, keepdim=True) + strength * v / v.norm(dim=-1, keepdim=True), dim=-1
    )


def block_outputs(model: Any, layers: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """Each block's output at the last token of a stock prefill."""
    seen: dict[int, Tensor] = {}

    def keep(index: int, output: Any) -> Any:
        seen[index] = (output[0] if isinstance(output, tuple) else output)[:, -1]
        return output

    with changed_outputs(list(layers), keep):
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
    return [seen[index] for index in range(len(layers))]


def steered_and_augmented(family: str, inputs: dict[str, Any]) -> Expected:
    """VISTA's steering with lambda 0.5, and the logits of blocks 1 and 2, which have a share of 0.3."""
    model = built(family)
    head, layers = model.get_output_embeddings(), model.get_submodule(FAMILIES[family].layers)
    loop, text = image_free(FAMILIES[family], model, inputs)
    pairs = zip(block_outputs(model, layers, inputs), block_outputs(loop, layers, text), strict=True)
    vectors = [with_image - without for with_image, without in pairs]

    def steer(layer: int, x: Tensor) -> Tensor:
        v = vectors[layer][:, None]
        c = 1.0 + torch.relu(
            -(x * v).sum(-1, keepdim=True) / (x.norm(dim=-1, keepdim=True) * v.norm(dim=-1, keepdim=True))
        )
        return turned(x, v, 0.5 * c)

    @torch.no_grad()
    def expected(answer: Tensor) -> Tensor:
        with changed_outputs([layer.mlp for layer in layers], steer):
            result = stock(model, inputs, answer, output_hidden_states=True)
        # hidden_states[0] are the embeddings, so that block 1 is entry 2.
        late = (head(result.hidden_states[0][2][:, -1]) + head(result.hidden_states[0][3][:, -1])) / 2
        return 0.7 * result.logits[0] + 0.3 * late

    return expected


def test_vista_window_is_the_published_one_for_32_layers() -> None:
    assert late_blocks(32, None) == (25, 30)
    assert late_blocks(LAYERS, None) == (2, 2)
    with pytest.raises(ValueError, match="blocks 0 to 2"):
        late_blocks(LAYERS, (2, 3))


def turned_to_directions(family: str, inputs: dict[str, Any]) -> Expected:
    """VTI with alpha 8."""
    model = built(family)
    layers = model.get_submodule(FAMILIES[family].layers)

    def expected(answer: Tensor) -> Tensor:
        with changed_outputs([layer.mlp for layer in layers], lambda layer, x: turned(x, DIRECTIONS[layer], 0.8)):
            return stock_logits(model, inputs, answer)

    return expected


@every_family
def test_vti_directions(family: str) -> None:
    model = built(family)
    pairs = [(batch(family, [Row(seed, 7)]), batch(family, [Row(seed + 10, 8)])) for seed in (1, 2, 3)]
    directions = textual_directions(model, pairs)
    differences = []
    for pair in pairs:
        states = []
        for inputs in pair:
            hidden = model.generate(
                **inputs, max_new_tokens=1, return_dict_in_generate=True, output_hidden_states=True
            ).hidden_states[0]
            states.append(torch.stack([state[0, -1] for state in hidden[1:]]))
        differences.append((states[0] - states[1]).flatten())
    data = torch.stack(differences).double()
    mean = data.mean(dim=0)
    # The first principal axis as an eigenvector of the scatter matrix; its sign is that of the best fitting pair.
    axis = torch.linalg.eigh((data - mean).T @ (data - mean)).eigenvectors[:, -1]
    fits = (data - mean) @ axis
    axis = axis * fits[fits.abs().argmax()].sign()
    torch.testing.assert_close(directions.flatten(), (mean + axis).float(), rtol=1e-3, atol=1e-4)


def released(family: str, inputs: dict[str, Any]) -> Expected:
    """The released form of RUDDER from bare hooks: its logits for given answer tokens."""
    model, config = built(family), settings()
    module = model.get_submodule(FAMILIES[family].layers)[LAYER].self_attn
    seen: list[Tensor] = []

    def differ(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        seen.append(output[0] - (args[0] if args else kwargs["hidden_states"]))

    hook = module.register_forward_hook(differ, with_kwargs=True)
    stock_logits(model, inputs, inputs["input_ids"][:, :0])
    hook.remove()
    rows = []
    for row, mask in zip(seen[0], inputs["attention_mask"].bool(), strict=True):
        rows.append(sum(d.norm() * d for d in row[mask]))
    directions = [v / v.norm() for v in rows]

    def steer(index: int, output: Any) -> Any:
        steered = output[0].clone()
        for row, v in enumerate(directions):
            for position, update in enumerate(output[0][row]):
                cosine = update @ v / update.norm().clamp_min(1e-12)  # padding may have no update
                up, down = (softplus(torch.tensor(config.c) + sign * config.k * cosine) for sign in (1, -1))
                gate = min(max(float(up / (up + down)), config.g_min), config.g_max)
                steered[row, position] = update + config.alpha_max * gate * v
        return (steered, *output[1:])

    def expected(answer: Tensor) -> Tensor:
        with changed_outputs([module], steer):
            return stock_logits(model, inputs, answer)

    return expected


def plain(family: str, inputs: dict[str, Any]) -> Expected:
    """Stock logits: the slow side itself agrees with plain decoding."""
    return lambda answer: stock_logits(built(family), inputs, answer)


def boosted(family: str, inputs: dict[str, Any]) -> Expected:
    """First logit boosting with a weight of 1.5 that is reached at a rate of 0.7."""

    def expected(answer: Tensor) -> Tensor:
        first, logits = (stock_logits(built(family), inputs, tokens) for tokens in (answer[:, :0], answer))
        return cut(logits + 1.5 * (1 - math.exp(-0.7 * answer.shape[1])) * first, logits, 0.1)

    return expected


def plausible(family: str, inputs: dict[str, Any]) -> Expected:
    """The cut-off alone."""

    def expected(answer: Tensor) -> Tensor:
        logits = stock_logits(built(family), inputs, answer)
        return cut(logits, logits, 0.1)

    return expected


REFERENCES: dict[str, tuple[Callable[[str, dict[str, Any]], Expected], dict[str, Any]]] = {
    "vanilla": (plain, {}),
    "vcd": (contrasted, {"alpha": 0.8, "seed": 3}),
    "dola": (contrasted_layers, {"layers": (0, 1, 2, 3), "relative_top": 0.01}),
    "pai": (guided, {"alpha": 0.0, "gamma": 1.7}),
    "vista": (steered_and_augmented, {"window": (1, 2)}),
    "vti": (turned_to_directions, {}),
    "rudder-released": (released, {}),
    "flb": (boosted, {}),
    "plausibility": (plausible, {}),
}


@every_family
@pytest.mark.parametrize("name", REFERENCES)
def test_every_step_of_a_batch(family: str, name: str) -> None:
    inputs, (reference, changes) = batch(family), REFERENCES[name]
    output = run(method(name, **changes), built(family), inputs, output_logits=True, sample_ids=IDS)
    check_steps(output, inputs["input_ids"].shape[1], reference(family, inputs))


@every_family
@pytest.mark.parametrize("name", ["rudder-released", "flb", "plausibility", "vcd", "pai"])
def test_beams_of_a_batch(family: str, name: str) -> None:
    inputs, (reference, changes) = batch(family), REFERENCES[name]
    options = {"num_beams": 3, "output_scores": True, "max_new_tokens": 4, "sample_ids": IDS}
    beams = run(method(name, **changes), built(family), inputs, **options)
    expected = reference(family, inputs)
    for row in range(2):
        tokens, value = slow_beam_search(lambda answer, row=row: expected(answer.expand(2, -1))[[row]], 3, steps=4)
        assert beams.sequences[row, -4:].tolist() == tokens
        assert abs(float(beams.sequences_scores[row]) - value) < 1e-3


def test_the_released_form_is_refused_where_layers_are_not_pre_norm() -> None:
    """Sandwich norms, a factor on the update, and a norm after attention."""
    opt = FAMILIES["blip-2"]
    text_config = {**opt.config["text_config"], "do_layer_norm_before": False}
    post_norm = replace(opt, config={**opt.config, "text_config": text_config})
    for family in (FAMILIES["gemma3"], FAMILIES["granite4_vision"], post_norm):
        model = family.build()
        with pytest.raises(UnsupportedModelError, match=f"rudder-released cannot run on '{family.model_type}'"):
            run(method("rudder-released"), model, family.inputs(model, [ROW]))


def cards(family: str, name: str, **changes: Any) -> Tensor:
    """The directions that a method steers by."""
    output = run(method(name, **changes), built(family), batch(family), output_rudder=True, sample_ids=IDS)
    card: Tensor = output.rudder.card
    return card


@every_family
def test_controls_steer_by_another_direction(family: str) -> None:
    card = cards(family, "rudder-beta")
    assert torch.equal(cards(family, "rudder-negated"), -card)
    drawn = cards(family, "rudder-shuffled")
    assert all(any(torch.equal(row, donor) for donor in DONORS) for row in drawn)
    bank = torch.cat([card, card[:1]])
    for seed in range(4):
        others = cards(family, "rudder-shuffled", donors=bank, seed=seed)
        assert torch.equal(others, card.flip(0)), "a sample must not draw its own CARD"
    mean = cards(family, "rudder-mean")
    centre = torch.stack(list(DONORS)).sum(0) / len(DONORS)
    torch.testing.assert_close(mean, torch.stack([centre / centre.norm()] * 2))
    random = cards(family, "rudder-random")
    torch.testing.assert_close(random.norm(dim=-1), card.norm(dim=-1))
    assert not torch.equal(random[0], random[1])
    assert (random * card).sum(-1).abs().max() < 0.9
    assert not torch.equal(random, cards(family, "rudder-random", seed=1))
    assert torch.equal(random, cards(family, "rudder-random", mode="add"))


def test_the_mean_card_leaves_out_the_samples_own() -> None:
    """Of three prompts, each has the mean of the other two, from a bank that holds its own."""
    three = batch("llava", [ROW, OTHER_ROW, Row(seed=7, words=6)])
    ids = [*IDS, "third"]
    own = run(method("rudder-beta"), built("llava"), three, output_rudder=True).rudder.card
    means = torch.stack([own[[1, 2]].mean(0), own[[0, 2]].mean(0), own[[0, 1]].mean(0)])
    found = run(method("rudder-mean", donors=own), built("llava"), three, output_rudder=True, sample_ids=ids)
    torch.testing.assert_close(found.rudder.card, means / means.norm(dim=-1, keepdim=True))


def test_collected_cards_are_those_that_rudder_reads() -> None:
    model, inputs = built("llava"), batch("llava", [ROW])
    collected = ShuffledCard.collect(model, settings(), [inputs, batch("llava")])
    expected = direction(prompt_updates(FAMILIES["llava"], model, inputs), inputs["attention_mask"]).float()
    assert collected.shape == (3, 32)
    torch.testing.assert_close(collected[:1], expected)
    torch.testing.assert_close(collected[1:2], expected, rtol=1e-4, atol=1e-5)


def moves(family: str, name: str, **changes: Any) -> list[Tensor]:
    """How a method moves the cached image values of each row in layer 2, the first that is edited, per lambda."""
    values = []
    for tested in (method("vanilla"), method(name, **changes)):
        output = run(tested, built(family), batch(family), sample_ids=IDS)
        values.append(output.past_key_values.layers[2].values)
    images = [row.nonzero()[:, 0] for row in batch(family)["input_ids"] == IMAGE]
    return [(values[1] - values[0])[row][:, image] / 2.0 for row, image in enumerate(images)]


@every_family
def test_controls_of_the_contrast_move_values_by_something_else(family: str) -> None:
    own = moves(family, "contrast")
    assert all(part.norm() > 0.1 and part.mean(1).abs().max() < 1e-5 for part in own)
    for part, negated in zip(own, moves(family, "contrast-negated"), strict=True):
        torch.testing.assert_close(negated, -part, rtol=1e-4, atol=1e-5)
    random, again = moves(family, "contrast-random"), moves(family, "contrast-random", seed=1)
    for part, drawn, other in zip(own, random, again, strict=True):
        torch.testing.assert_close(drawn.norm(dim=-1), part.norm(dim=-1), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(drawn, other, atol=1e-2)
        assert not torch.allclose(drawn, part, atol=1e-2)
    bank = ShuffledContrast.collect(
        built(family), RudderConfig(layer=-1, alpha_max=0.0, contrast=1.0, contrast_after=1), [batch(family)]
    )
    assert len(bank) == 2
    for seed in range(4):
        others = moves(family, "contrast-shuffled", donors=bank, seed=seed)
        for part, other in zip(own, reversed(others), strict=True):
            torch.testing.assert_close(other, part, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="every donor is the sample's own image"):
        run(method("contrast-shuffled", donors=bank[:1]), built(family), batch(family))


def test_the_contrast_of_a_config_is_no_part_of_the_papers_method() -> None:
    config = RudderConfig(layer=2, alpha_max=3.0, contrast=0.9)
    assert get("rudder-beta", config=config).settings()["contrast"] == 0.0
    both = get("rudder-beta+contrast", config=config, contrast=0.4, contrast_after=3)
    assert both.settings() | {"alpha_max": 3.0, "contrast": 0.4, "contrast_after": 3} == both.settings()
    alone = run(method("contrast"), built("llava"), batch("llava"), output_logits=True)
    mixed = method("rudder-beta+contrast", alpha_max=0.0, contrast=2.0, contrast_after=1)
    together = run(mixed, built("llava"), batch("llava"), output_logits=True)
    assert torch.equal(torch.stack(alone.logits), torch.stack(together.logits))
