"""What every decoding method owes: vanilla at strength 0, batches, beams, a clean model, clear refusals."""

from __future__ import annotations

import copy
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast

from rudder_hf import UnsupportedModelError
from rudder_hf.methods import BUDGET, CONTROL_OF, GROUPS, NAMES, Method, Sources, get, method_class
from rudder_hf.methods.vti import textual_directions
from tests.support.helpers import (
    OTHER_ROW,
    ROW,
    Listener,
    in_threads,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
    with_dtype,
)
from tests.support.methods import (
    DIRECTIONS,
    IDS,
    batch,
    built,
    every_family,
    method,
    run,
)
from tests.support.zoo import FAMILIES, Row
from tests.support.zoo.base import VOCAB

DECODINGS: dict[str, dict[str, Any]] = {"greedy": {}, "sampling": {"do_sample": True}, "beams": {"num_beams": 3}}
# Settings with which a method is vanilla.
NOTHING: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "vcd": {"noise_step": 0, "beta": 0.0},
    "pai": {"alpha": 0.0, "gamma": 1.0, "cut_off": 0.0},
    "vista": {"strength": 0.0, "gamma": 0.0},
    "vti": {"alpha": 0.0},
    "flb": {"gamma": 0.0, "beta": 0.0},
    "rudder-released": {"alpha_max": 0.0},
    "rudder-beta": {"alpha_max": 0.0},
    "rudder-random": {"alpha_max": 0.0},
    "contrast": {"contrast": 0.0},
    "contrast-random": {"contrast": 0.0},
    "rudder-beta+contrast": {"alpha_max": 0.0, "contrast": 0.0},
}


def decoded(tested: Method, family: str, inputs: dict[str, Any], decoding: str, **options: Any) -> Tensor:
    torch.manual_seed(0)
    output = run(tested, built(family), inputs, **DECODINGS[decoding], **options)
    sequences: Tensor = output.sequences
    return sequences


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("decoding", DECODINGS)
def test_without_strength_a_method_is_vanilla(family: str, decoding: str) -> None:
    inputs = batch(family)
    expected = decoded(method("vanilla"), family, inputs, decoding)
    for name, changes in NOTHING.items():
        assert torch.equal(decoded(method(name, **changes), family, inputs, decoding), expected), name


@pytest.mark.parametrize("family", ["llava", "mllama"])
def test_published_cut_offs_do_not_change_greedy_search_either(family: str) -> None:
    expected = decoded(method("vanilla"), family, batch(family), "greedy")
    for name, changes in {"vcd": {"noise_step": 0}, "flb": {"gamma": 0.0}, "plausibility": {}}.items():
        assert torch.equal(decoded(method(name, **changes), family, batch(family), "greedy"), expected)


@every_family
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_in_a_batch_gives_what_it_gives_alone(family: str, name: str) -> None:
    """In any place; with two images in a prompt it draws the noise that it draws alone, by grid and by row."""
    batches = [[ROW, OTHER_ROW]]
    if name in ("vcd", "rudder-random", "rudder-shuffled", "rudder-mean"):
        batches.append([OTHER_ROW, ROW])
    if name == "vcd" and family != "instructblip":  # which takes one image
        batches.append([Row(seed=3, words=9, images=2), ROW])
    for rows in batches:
        ids = [f"sample {row.seed}" for row in rows]
        both = run(method(name), built(family), batch(family, rows), sample_ids=ids, output_logits=True)
        for index, row in enumerate(rows):
            alone = run(method(name), built(family), batch(family, [row]), sample_ids=[ids[index]], output_logits=True)
            assert torch.equal(alone.sequences[0, -4:], both.sequences[index, -4:])
            together = torch.stack(both.logits)[:, index]
            torch.testing.assert_close(torch.stack(alone.logits)[:, 0], together, rtol=2e-4, atol=2e-4)


def test_every_method_acts() -> None:
    """On the tiny models each method changes logits visibly, except for the one that only cuts off."""
    inputs = batch("llava")
    plain = torch.stack(run(method("vanilla"), built("llava"), inputs, output_logits=True).logits)
    for name in set(NAMES) - {"vanilla", "plausibility"}:
        logits = torch.stack(run(method(name), built("llava"), inputs, output_logits=True, sample_ids=IDS).logits)
        both = logits.isfinite() & plain.isfinite()
        assert (logits - plain)[both].abs().max() > 0.05, name


@pytest.mark.slow
@every_family
def test_nothing_is_left_on_the_model(family: str) -> None:
    model, inputs = built(family), batch(family)
    before, functions = snapshot_of_used(model, inputs), dict(AttentionInterface._global_mapping)
    for name in NAMES:
        run(method(name), model, inputs, num_beams=2, max_new_tokens=2, sample_ids=IDS)
        assert snapshot(model) == before, name
    assert AttentionInterface._global_mapping == functions


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_after_a_failure(name: str) -> None:
    model, inputs = built("llava"), batch("llava")
    before, functions = snapshot_of_used(model, inputs), dict(AttentionInterface._global_mapping)

    def fail(ids: Tensor, scores: Tensor, **_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(method(name), model, inputs, num_beams=2, sample_ids=IDS, stopping_criteria=[fail])
    assert snapshot(model) == before
    assert AttentionInterface._global_mapping == functions


def test_threads_do_not_meet() -> None:
    """Different methods on one model at the same time give what they give one after the other."""
    model, inputs = built("llava"), batch("llava")
    names = ("vanilla", "vcd", "pai", "vista", "dola", "vti")

    def job(name: str) -> Any:
        return lambda: run(method(name), model, inputs, max_new_tokens=6, sample_ids=IDS).sequences

    expected = [job(name)() for name in names]
    for result, wanted in zip(in_threads([job(name) for name in names]), expected, strict=True):
        assert torch.equal(result, wanted)


def test_a_generation_within_a_generation_is_stock() -> None:
    """A callback may use the model as it is while a method runs on it."""
    model, inputs = built("llava"), batch("llava")
    plain = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    expected = run(method("vista"), model, inputs).sequences
    inner: list[Tensor] = []
    with method("vista").applied(model) as generate:
        streamed = batch("llava", [ROW])

        def callback() -> None:
            inner.append(model.generate(**inputs, max_new_tokens=3, do_sample=False))

        output = generate(**streamed, max_new_tokens=4, do_sample=False, streamer=Listener(at=3, callback=callback))
    assert torch.equal(inner[0], plain)
    assert torch.equal(output[0, -4:], expected[0, -4:])


@pytest.mark.parametrize("name", NAMES)
def test_streaming(name: str) -> None:
    inputs, listener = batch("llava", [ROW]), Listener()
    changes = {"donors": torch.eye(6, 32)} if name in ("rudder-shuffled", "rudder-mean") else {}
    output = run(method(name, **changes), built("llava"), inputs, streamer=listener)
    assert [token for (token,) in listener.received[1:]] == output.sequences[0, -4:].tolist()
    assert listener.ended


def test_the_page_tells_the_cost_of_each_method() -> None:
    """The column "cost" of docs/methods.md has forwards per token, and prefills beyond one."""
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\|[^|]*\| (\d), (\d)", page, re.MULTILINE)
    told = {name: (int(each), int(more)) for cell, each, more in rows for name in re.findall("`(.+?)`", cell)}
    for name in NAMES:  # controls cost what they are controls of, and have a table of their own
        assert told[CONTROL_OF.get(name, name)] == (method(name).forwards_per_token, method(name).extra_prefills)


@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_other_caches(options: dict[str, Any]) -> None:
    for name in ("vcd", "pai", "vista", "dola", "vti"):
        expected = run(method(name), built("llava"), batch("llava"), sample_ids=IDS).sequences
        found = run(method(name), built("llava"), batch("llava"), sample_ids=IDS, **options).sequences
        assert torch.equal(found, expected), name
    vars(built("llava")).pop("_cache", None)  # transformers keeps the static cache there


def test_repetition_penalty_comes_after_the_contrast() -> None:
    """As published: DoLa's and VCD's contrast takes the place of the logits that processors see."""
    inputs = batch("llava")
    for name in ("dola", "vcd"):
        output = run(
            method(name), built("llava"), inputs, repetition_penalty=1.7, output_logits=True, output_scores=True
        )
        for step, (logits, scores) in enumerate(zip(output.logits, output.scores, strict=True)):
            ids = output.sequences[:, : inputs["input_ids"].shape[1] + step]
            seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
            penalised = torch.where(logits < 0, logits * 1.7, logits / 1.7)
            assert torch.equal(scores, torch.where(seen, penalised, logits))


def test_several_sequences_for_a_prompt() -> None:
    """Sampling with one token to choose from: every returned sequence is the greedy one."""
    for name in NAMES:
        greedy = run(method(name), built("llava"), batch("llava"), sample_ids=IDS).sequences
        options = {"do_sample": True, "top_k": 1, "num_return_sequences": 2}
        sampled = run(method(name), built("llava"), batch("llava"), sample_ids=IDS, **options).sequences
        assert torch.equal(sampled, greedy.repeat_interleave(2, dim=0)), name


def test_options_in_a_generation_config() -> None:
    """Beams that the language model's own config asks for, and those of a config that is passed."""
    model: Any = FAMILIES["instructblip"].build()
    inputs = batch("instructblip")
    for name in ("pai", "vista"):
        expected = run(method(name), model, inputs, num_beams=2).sequences
        config = copy.deepcopy(model.language_model.generation_config)
        config.num_beams = 2
        assert torch.equal(run(method(name), model, inputs, generation_config=config).sequences, expected)
        model.language_model.generation_config.num_beams = 2
        assert torch.equal(run(method(name), model, inputs).sequences, expected)
        model.language_model.generation_config.num_beams = 1


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name: str) -> None:
    model = FAMILIES["llava"].build().to(torch.bfloat16)
    output = run(method(name), model, with_dtype(batch("llava"), torch.bfloat16), num_beams=2, output_scores=True)
    assert output.sequences_scores.isfinite().all()
    assert output.sequences[:, -4:].min() >= 0


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are single characters, as many as the tiny models have."""
    tokenizer = Tokenizer(models.BPE({chr(33 + index): index for index in range(VOCAB)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_text_to_stop_at() -> None:
    """A tokenizer and strings to stop at reach the main branch, and do not disturb the side branch."""
    model, inputs, tokenizer = built("llava"), batch("llava", [ROW]), letters()
    for name in ("vcd", "pai"):
        whole = run(method(name), model, inputs, max_new_tokens=6).sequences
        options = {"stop_strings": [tokenizer.decode(whole[0, -4:-2])], "tokenizer": tokenizer, "max_new_tokens": 6}
        stopped = run(method(name), model, inputs, **options).sequences
        assert torch.equal(stopped, whole[:, :-2])


# Method, its settings, options of the call, and what the error says.
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        (name, {}, {"num_beams": 2, "do_sample": True}, "cannot sample from beams")
        for name in ("vcd", "pai", "dola", "flb")
    ),
    ("vcd", {}, {"num_beams": 2, "use_cache": False}, "unset use_cache"),
    ("vcd", {}, {"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens"),
    ("vista", {}, {"prefill_chunk_size": 4}, "prefill_chunk_size"),
    ("pai", {}, {"custom_generate": print}, "replaces the token loop"),
    ("vcd", {}, {"sample_ids": ["one"]}, "one id for each"),
    ("rudder-random", {}, {"sample_ids": "ab"}, "one id for each"),
    ("dola", {"layers": (4,)}, {}, "from 0 .embeddings. to 3"),
    ("pai", {"first_layer": 9}, {}, "set a lower `first_layer`"),
    ("vti", {"directions": DIRECTIONS[:2]}, {}, "for 2 layers, but the model has 4"),
    ("vista", {"window": (3, 1)}, {}, "blocks 0 to 2"),
    ("rudder-shuffled", {"donors": [1]}, {}, r"`donors` is list, but has to be a tensor of shape \(number, 32\)"),
    ("rudder-mean", {"donors": torch.eye(3)}, {}, r"`donors` is \(3, 3\)"),
    ("rudder-mean", {"donors": torch.empty(0, 32)}, {}, "Collect more"),
    *(
        (name, {"donors": None}, {}, "needs other images")
        for name in ("rudder-shuffled", "rudder-mean", "contrast-shuffled")
    ),
]


@pytest.mark.parametrize(("name", "changes", "options", "message"), REFUSED, ids=lambda value: str(value)[:24])
def test_what_cannot_work_is_refused(
    name: str, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(method(name, **changes), built("llava"), batch("llava"), **options)


def test_prompts_that_cannot_work_are_refused() -> None:
    text = {name: value for name, value in batch("llava").items() if name != "pixel_values"}
    with pytest.raises(ValueError, match="call has none"):
        run(method("vcd"), built("llava"), text)
    cache = built("llava").generate(**batch("llava"), max_new_tokens=2, return_dict_in_generate=True).past_key_values
    with pytest.raises(ValueError, match="needs the whole prompt"):
        run(method("pai"), built("llava"), batch("llava"), past_key_values=cache)
    image_only = batch("llava", [Row(seed=1, words=0)])
    with pytest.raises(ValueError, match="nothing but an image"):
        run(method("pai"), built("llava"), image_only)
    with pytest.raises(UnsupportedModelError, match="MLP"):
        run(method("vti"), FAMILIES["blip-2"].build(), FAMILIES["blip-2"].inputs(built("llava"), [ROW]))


def test_a_steered_model_is_refused() -> None:
    """Vanilla on a steered model would be no baseline, and a peer on it a mixture."""
    model = FAMILIES["llava"].build()
    for way in ("wrapper", "attach"):
        steered, remove = steered_by(way, model)
        for name in NAMES:
            with pytest.raises(ValueError, match="steered"):
                run(method(name), steered, batch("llava"))
        remove()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("vcd", {"alpha": -1}, r"`alpha` is -1, but has to be a number in \[0, 100\]"),
    ("vcd", {"noise_step": 1000}, "`noise_step` is 1000"),
    ("vcd", {"noise_step": 1.5}, "an integer"),
    ("pai", {"alpha": "much"}, "`alpha` is 'much'"),
    ("dola", {"layers": "middle"}, "'low', 'high' or a list"),
    ("vti", {}, "textual_directions"),
    ("rudder-beta", {}, "no RUDDER settings for the model, which rudder-beta needs"),
    ("rudder-beta", {"layer": 2, "alpha_max": -3.0}, "`alpha_max` is -3"),
    ("rudder-released", {"layer": 2, "alpha_max": 3.0, "pool": "mean"}, "no `pool`. Its settings: layer, alpha_max"),
    ("rudder-negated", {"layer": 2, "alpha_max": 1.0, "mode": "both"}, "one of 'beta', 'add'"),
    ("nothing", {}, "There is no method 'nothing'. Methods: vanilla, rudder-beta"),
    ("dolla", {}, "Did you mean 'dola'"),
]


@pytest.mark.parametrize(("name", "changes", "message"), WRONG, ids=lambda value: str(value)[:24])
def test_wrong_settings_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get(name, **changes)


def test_settings_come_from_the_config_unless_given() -> None:
    config = settings(alpha_max=7.0, mode="add", span="text")
    beta = get("rudder-beta", config=config, k=3.0)
    assert beta.settings() | {"mode": "beta", "alpha_max": 7.0, "k": 3.0, "span": "text"} == beta.settings()
    assert get("rudder-add", config=settings()).settings()["mode"] == "add"
    assert get("rudder-random", config=config, seed=4).settings()["seed"] == 4
    assert method("vti").settings()["directions"] == {"shape": [4, 32]}


def test_names_are_those_of_the_methods() -> None:
    for name in NAMES:
        assert method(name).name == name
        assert method(name) == method(name)
        assert len({method(name), method(name)}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_tuned_on_as_many_settings(name: str) -> None:
    kind, norms = method_class(name), {3: 13.0, 1: 11.0}
    given = {"directions": DIRECTIONS} if name == "vti" else {}
    tried = [get(name, **given, **settings).settings() for settings in kind.search_space(norms)]
    if name in (*GROUPS["controls"], "vanilla"):
        assert tried == []
        return
    assert len({json.dumps(settings, sort_keys=True) for settings in tried}) == BUDGET
    if name in (*GROUPS["peers"], "contrast") and name != "rudder-released":
        assert get(name, **given).settings() in tried, "the published settings are tried"
    else:
        shares = [round(settings["alpha_max"] / (10 + settings["layer"]), 3) for settings in tried]
        assert shares == sorted(shares)
        assert {settings["layer"] for settings in tried} == set(norms)


def test_every_method_is_in_one_group() -> None:
    assert ("vanilla", *(name for group in list(GROUPS)[1:] for name in GROUPS[group])) == NAMES == GROUPS["all"]
    assert GROUPS["rudder"] == ("rudder-beta", "rudder-add")


def test_what_a_method_needs_from_a_model() -> None:
    """Each method finds it in the sources."""
    model = built("llava")
    pairs = [(batch("llava", [Row(1, 7)]), batch("llava", [Row(2, 8)]))]
    sources = Sources(lambda name: settings(), lambda: pairs, lambda: [batch("llava")])
    for name in NAMES:
        kind = method_class(name)
        run(kind.for_model(model, sources), model, batch("llava"), num_beams=2)
    assert torch.equal(method_class("vti").for_model(model, sources).directions, textual_directions(model, pairs))
    with pytest.raises(ValueError, match="textual_directions"):
        method_class("vti").for_model(model, Sources())


@pytest.mark.slow
def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent.parent / "examples" / "custom_method.py"
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    vanilla, guided = (
        re.findall(rf"^{name} +example \d: (.+)", printed, re.M) for name in ("vanilla", "detector-guidance")
    )
    assert len(vanilla) == len(guided) == 2
    assert vanilla != guided
