"""Everything that a user does with the base works on the wrapper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
)

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from tests.support.helpers import (
    ROW,
    assert_different,
    assert_same,
    family_of,
    new_tokens,
    run,
    settings,
    snapshot,
    with_dtype,
)
from tests.support.zoo import FAMILIES


class Case:
    """A wrapped model, its base, and inputs for both."""

    def __init__(self, name: str = "llava", **changes: Any) -> None:
        self.family = family_of(name)
        self.base = self.family.build()
        self.inputs = self.family.inputs(self.base, [ROW])
        self.wrapper = RudderForConditionalGeneration.from_base(self.base, settings(**changes))


@pytest.fixture
def case() -> Case:
    """A wrapped LLaVA."""
    return Case()


# Model manners


def test_device_dtype_and_casts(case: Case) -> None:
    """Casting the wrapper casts the base, and both say so."""
    wrapper, base = case.wrapper, case.base
    assert wrapper.device == base.device == torch.device("cpu")
    assert wrapper.dtype == base.dtype == torch.float32
    for cast, dtype in ((wrapper.half, torch.float16), (wrapper.float, torch.float32)):
        assert cast() is wrapper
        assert wrapper.dtype == base.dtype == dtype
    assert wrapper.to(torch.bfloat16) is wrapper
    assert wrapper.dtype == base.dtype == torch.bfloat16
    assert wrapper.to("cpu") is wrapper
    inputs = with_dtype(case.inputs, torch.bfloat16)
    assert_different(run(wrapper, inputs), run(wrapper, inputs, rudder=False))


def test_train_and_eval(case: Case) -> None:
    """The wrapper takes over the base's mode and changes it."""
    wrapper, base = case.wrapper, case.base
    assert not wrapper.training
    assert wrapper.train() is wrapper
    assert base.training
    assert base.model.language_model.training
    assert wrapper.eval() is wrapper
    assert not any(module.training for module in base.modules())
    trained = FAMILIES["llava"].build().train()
    assert RudderForConditionalGeneration.from_base(trained, settings()).training


def test_parameters_and_state(case: Case) -> None:
    """Parameters are the base's own, counted once."""
    wrapper, base = case.wrapper, case.base
    assert wrapper.num_parameters() == base.num_parameters()
    assert wrapper.get_memory_footprint() == base.get_memory_footprint()
    assert {id(each) for each in wrapper.parameters()} == {id(each) for each in base.parameters()}
    state = wrapper.state_dict()
    assert {name.removeprefix("model.") for name in state} == set(base.state_dict())
    other = FAMILIES["llava"].build()
    with torch.no_grad():
        other.lm_head.weight.neg_()
    twin = RudderForConditionalGeneration.from_base(other, settings())
    twin.load_state_dict(state)
    assert_same(run(twin, case.inputs), run(wrapper, case.inputs))
    assert wrapper.requires_grad_(False) is wrapper
    assert not any(each.requires_grad for each in base.parameters())


def test_embeddings(case: Case) -> None:
    """Embeddings are the base's; resizing them keeps the model and its steering usable."""
    wrapper, base = case.wrapper, case.base
    assert wrapper.get_input_embeddings() is base.get_input_embeddings()
    assert wrapper.get_output_embeddings() is base.get_output_embeddings()
    assert wrapper.get_decoder() is base.get_decoder()
    steered, vanilla = run(wrapper, case.inputs), run(base, case.inputs, rudder=False)
    resized = wrapper.resize_token_embeddings(130, mean_resizing=False)
    assert resized is base.get_input_embeddings()
    assert base.config.text_config.vocab_size == 130
    with torch.no_grad():
        base.get_output_embeddings().weight[120:] = 0.0
    for output, wanted in ((run(wrapper, case.inputs), steered), (run(base, case.inputs, rudder=False), vanilla)):
        assert torch.equal(output.sequences, wanted.sequences)
        torch.testing.assert_close(torch.stack(output.logits)[..., :120], torch.stack(wanted.logits))


def test_attributes_of_the_base(case: Case) -> None:
    """What the wrapper lacks it asks the base for; what neither has is missing."""
    wrapper, base = case.wrapper, case.base
    assert wrapper.lm_head is base.lm_head
    features = wrapper.get_image_features(pixel_values=case.inputs["pixel_values"])
    assert torch.equal(
        features.pooler_output[0], base.get_image_features(pixel_values=case.inputs["pixel_values"]).pooler_output[0]
    )
    assert wrapper.can_generate()
    assert not hasattr(wrapper, "hf_device_map")
    with pytest.raises(AttributeError, match="no_such_thing"):
        wrapper.no_such_thing  # noqa: B018


def test_what_is_switched_is_the_base(case: Case) -> None:
    """Attention and gradient checkpointing."""
    wanted = run(case.wrapper, case.inputs)
    case.wrapper.set_attn_implementation("eager")
    assert case.base.config.text_config._attn_implementation == "eager"
    assert torch.equal(run(case.wrapper, case.inputs).sequences, wanted.sequences)
    case.wrapper.train()
    case.wrapper.gradient_checkpointing_enable()
    assert case.base.is_gradient_checkpointing
    case.wrapper(**case.inputs, labels=case.inputs["input_ids"], use_cache=False).loss.backward()
    case.wrapper.gradient_checkpointing_disable()
    assert not case.base.is_gradient_checkpointing


@pytest.mark.parametrize("name", ["llava", "llava-plain", "idefics2", "instructblip", "qwen2_5_vl", "gemma3"])
def test_forward_is_the_bases(name: str) -> None:
    """Forward is never steered: logits, loss, cache and gradients are the stock model's bit for bit."""
    case = Case(name)
    stock = case.family.build()
    labels = case.inputs["input_ids"]
    run(case.wrapper, case.inputs)
    results = []
    for model, holder in ((stock, stock), (case.wrapper, case.base), (case.base, case.base)):
        model.zero_grad()
        output = model(**case.inputs, labels=labels)
        output.loss.backward()
        gradients = {name: each.grad for name, each in holder.named_parameters() if each.grad is not None}
        results.append((output, gradients))
    (wanted, wanted_gradients), *others = results
    for output, gradients in others:
        assert torch.equal(output.logits, wanted.logits)
        assert torch.equal(output.loss, wanted.loss)
        assert gradients.keys() == wanted_gradients.keys()
        assert all(torch.equal(gradients[name], gradient) for name, gradient in wanted_gradients.items())


# Generating


@pytest.mark.parametrize("name", ["llava", "instructblip"])
def test_generation_config(name: str) -> None:
    """The generation config is the base's, read and written through the wrapper."""
    case = Case(name)
    wrapper, base = case.wrapper, case.base
    assert wrapper.generation_config is base.generation_config
    own = GenerationConfig(max_new_tokens=3, pad_token_id=0, eos_token_id=None, bos_token_id=1)
    wrapper.generation_config = own
    assert base.generation_config is own
    assert wrapper.generation_config is own
    if name == "instructblip":
        # Its `generate` hands the arguments to the language model, which has a generation config of its own.
        base.language_model.generation_config.max_new_tokens = 3
    wanted = new_tokens(run(wrapper, case.inputs))[:, :3]
    assert torch.equal(wrapper.generate(**case.inputs)[:, -3:], wanted)
    given = GenerationConfig(max_new_tokens=2, pad_token_id=0, return_dict_in_generate=True)
    output = wrapper.generate(**case.inputs, generation_config=given, output_rudder=True)
    assert torch.equal(output.sequences[:, -2:], wanted[:, :2])
    assert output.rudder.gate.shape == (1, 2)


def test_rudder_disabled(case: Case) -> None:
    """Within the block nothing is steered, on the base too, also after an error."""
    steered, vanilla = run(case.wrapper, case.inputs), run(case.family.build(), case.inputs)
    assert_different(steered, vanilla)
    with case.wrapper.rudder_disabled():
        assert_same(run(case.wrapper, case.inputs, rudder={"alpha_max": 9.0}), vanilla)
        assert_same(run(case.base, case.inputs), vanilla)
        trace = run(case.wrapper, case.inputs, output_rudder=True)
    assert torch.equal(trace.sequences, vanilla.sequences)
    assert not trace.rudder.push.any()
    with pytest.raises(KeyError), case.wrapper.rudder_disabled():
        raise KeyError
    assert_same(run(case.wrapper, case.inputs), steered)


def test_config_is_followed(case: Case) -> None:
    """Changed settings, and an exchanged config, take effect at the next call; bad ones are refused and do no harm."""
    stronger = run(case.wrapper, case.inputs, rudder={"alpha_max": 12.0, "mode": "add"})
    case.wrapper.config.alpha_max, case.wrapper.config.mode = 12.0, "add"
    assert_same(run(case.wrapper, case.inputs), stronger)
    with pytest.raises(ValueError, match="alpha_max"):
        case.wrapper.config.alpha_max = -1.0
    assert_same(run(case.wrapper, case.inputs), stronger)
    case.wrapper.config = settings()
    assert_same(run(case.wrapper, case.inputs), run(Case().wrapper, case.inputs))


def test_transition_scores(case: Case) -> None:
    """The usual way to get the tokens' log-probabilities works on the wrapper as on the base."""
    output = run(case.wrapper, case.inputs)
    arguments = (output.sequences, output.logits)
    scores = case.wrapper.compute_transition_scores(*arguments, normalize_logits=True)
    assert torch.equal(scores, case.base.compute_transition_scores(*arguments, normalize_logits=True))


@pytest.mark.parametrize("way", ["wrapper", "base"])
@pytest.mark.parametrize("method", ["generate_batch", "init_continuous_batching"])
def test_continuous_batching_is_refused(case: Case, way: str, method: str) -> None:
    """Continuous batching bypasses the loop: it is refused with the reason, and the model stays as it is."""
    wanted = run(case.wrapper, case.inputs)
    model: Any = getattr(case, way)
    arguments: list[Any] = [[[11, 12, 13]]] if method == "generate_batch" else []
    with pytest.raises(ValueError, match="continuous batching"):
        getattr(model, method)(*arguments)
    assert_same(run(case.wrapper, case.inputs), wanted)
    assert case.base.config.text_config._attn_implementation == "sdpa"


# Saving and loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the tiny LLaVA."""
    path = tmp_path_factory.mktemp("llava")
    FAMILIES["llava"].build().save_pretrained(path)
    return str(path)


def test_from_base_keeps_the_callers_config(folder: str) -> None:
    """Settings that are used for two bases name each base rightly."""
    shared = settings(base_model_name_or_path="org/base", base_model_revision="a" * 40)
    first = RudderForConditionalGeneration.from_base(folder, shared)
    other = AutoModelForImageTextToText.from_pretrained(folder)
    other.config.name_or_path = "somewhere/else"
    second = RudderForConditionalGeneration.from_base(other, shared)
    assert first.config.base_model_name_or_path == folder
    assert second.config.base_model_name_or_path == "somewhere/else"
    assert first.config.base_model_revision is second.config.base_model_revision is None
    assert (shared.base_model_name_or_path, shared.base_model_revision) == ("org/base", "a" * 40)


def test_a_config_given_at_load_replaces_the_stored_one(folder: str, tmp_path: Path) -> None:
    RudderForConditionalGeneration.from_base(folder, settings(layer=1)).save_pretrained(str(tmp_path))
    written = (tmp_path / "config.json").read_bytes()
    config = RudderConfig(base_model_name_or_path=folder, layer=3)
    given = RudderForConditionalGeneration.from_pretrained(str(tmp_path), config=config, k=2.0)
    assert (given.config.layer, given.config.k, given.config.alpha_max) == (3, 2.0, 20.0)
    assert (tmp_path / "config.json").read_bytes() == written


REFUSED: list[tuple[Callable[[str], Any], str]] = [
    (lambda folder: RudderForConditionalGeneration.from_base(folder), "no preset"),
    (lambda folder: RudderForConditionalGeneration.from_base(FAMILIES["llava"].build(), "no-such"), "no preset"),
    (lambda folder: RudderForConditionalGeneration.from_base(FAMILIES["llava"].build(), settings(), dtype="x"), "id"),
    (lambda folder: RudderForConditionalGeneration(settings()), "from_base"),
    (lambda folder: RudderForConditionalGeneration.from_base(folder, settings(layer=30)), "4 decoder layers"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refusals_say_what_to_do(make: Callable[[str], Any], message: str, folder: str) -> None:
    """Making a wrapper without settings, base or sense fails with the next step in the message."""
    with pytest.raises(ValueError, match=message):
        make(folder)


def test_settings_without_a_base(tmp_path: Path) -> None:
    """Settings that name no base cannot load one."""
    model = FAMILIES["llava"].build()
    before = snapshot(model)
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wrapper.save_pretrained(tmp_path)
    assert snapshot(wrapper.unwrap()) == before
    with pytest.raises(ValueError, match="from_base"):
        RudderForConditionalGeneration.from_pretrained(tmp_path)
