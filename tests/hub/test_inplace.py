"""`AutoModelForCausalLM` on settings: the base model itself, steered; and settings in a generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoProcessor,
    GenerationConfig,
    LlavaForConditionalGeneration,
)

from rudder_hf import RudderForConditionalGeneration, attach, detach
from tests.support.helpers import settings
from tests.support.repos import inputs_for, make_base, make_settings, picture

NEW = 6
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = make_base(tmp_path_factory.mktemp("base"))
    return make_settings(tmp_path_factory.mktemp("settings"), base)


@pytest.fixture(scope="module")
def inputs(repo: Path) -> dict[str, Any]:
    return inputs_for(AutoProcessor.from_pretrained(repo), [picture()])


@pytest.fixture(scope="module")
def expected(repo: Path, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the wrapper generates."""
    wrapper = AutoModel.from_pretrained(repo)
    assert isinstance(wrapper, RudderForConditionalGeneration)
    kinds: dict[str, Any] = {"steered": None, "vanilla": False, "add": {"mode": "add"}}
    said = {kind: wrapper.generate(**inputs, **GREEDY, rudder=rudder) for kind, rudder in kinds.items()}
    assert len({tuple(ids[0].tolist()) for ids in said.values()}) == 3
    return said


@pytest.fixture
def model(repo: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(repo)


def test_the_base_itself_is_steered(model: Any, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert type(model) is LlavaForConditionalGeneration
    assert model.config.model_type == "llava"
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["steered"])
    assert torch.equal(model.generate(**inputs, **GREEDY, rudder=False), expected["vanilla"])
    with pytest.raises(ValueError, match="already steered"):
        attach(model, settings())
    detach(model)
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["vanilla"])


def test_arguments_go_where_they_belong(repo: Path, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    options: dict[str, Any] = {"mode": "add", "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(repo, dtype=torch.float32, **options)
    assert model.config.text_config._attn_implementation == "eager"
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["add"])
    with pytest.raises(ValueError, match="holds no weights"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(repo))


def test_the_first_architecture_loads_it(repo: Path) -> None:
    """As `transformers serve` and others do: a name that is looked up in transformers."""
    import transformers

    first = json.loads((repo / "config.json").read_text())["architectures"][0]
    assert isinstance(getattr(transformers, first).from_pretrained(repo), LlavaForConditionalGeneration)


# Settings in a generation config


def test_generation_config(model: Any, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    """A call takes its settings from its generation config or the model's, if it brings none itself."""

    def say(stored: Any, **more: Any) -> torch.Tensor:
        return model.generate(**inputs, generation_config=GenerationConfig(**GREEDY, rudder=stored), **more)

    assert torch.equal(say(False), expected["vanilla"])
    assert torch.equal(say({"mode": "add"}), expected["add"])
    assert torch.equal(say(None), expected["steered"])
    assert torch.equal(say(False, rudder={"mode": "add"}), expected["add"])
    assert torch.equal(say(False, rudder=True), expected["steered"])
    model.generation_config.rudder = {"mode": "add"}
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["add"])
    assert torch.equal(say(False), expected["vanilla"])


def test_generation_config_on_the_wrapper_and_for_one_call(
    repo: Path, inputs: dict[str, Any], expected: dict[str, torch.Tensor]
) -> None:
    options = GenerationConfig(**GREEDY, rudder={"mode": "add"})
    wrapper = AutoModel.from_pretrained(repo)
    assert torch.equal(wrapper.generate(**inputs, generation_config=options), expected["add"])
    assert torch.equal(wrapper.generate(**inputs, generation_config=options, rudder=False), expected["vanilla"])
    stock = wrapper.unwrap()
    custom = {"custom_generate": str(repo), "trust_remote_code": True}
    assert torch.equal(stock.generate(**inputs, generation_config=options, **custom), expected["add"])
    # A stock model knows nothing of the attribute.
    assert torch.equal(stock.generate(**inputs, generation_config=options), expected["vanilla"])


@pytest.mark.parametrize("rudder", ["off", 5, {"alpha_max": -1.0}, {"strength": 1.0}])
def test_bad_settings_are_refused(rudder: Any, model: Any, inputs: dict[str, Any]) -> None:
    named = f"rudder={rudder!r}" if not isinstance(rudder, dict) else next(iter(rudder))
    with pytest.raises((TypeError, ValueError), match=named):
        model.generate(**inputs, generation_config=GenerationConfig(**GREEDY, rudder=rudder))
