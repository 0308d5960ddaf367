"""`model.generate(..., custom_generate=repo)`: a stock model, steered for one call as the wrapper steers it."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rudder_hf import RudderForConditionalGeneration, attach, write_repo
from tests.support.helpers import (
    OTHER_ROW,
    ROW,
    Listener,
    assert_different,
    assert_same,
    family_of,
    new_tokens,
    run,
    settings,
    snapshot,
    snapshot_of_used,
)
from tests.support.zoo import Family

# The models of the paper.
NAMES = ("llava", "idefics2", "instructblip", "qwen2_5_vl")


class Case:
    """A stock model, its inputs, a wrapped twin, and a folder with settings."""

    def __init__(self, name: str, repo: Path) -> None:
        self.family: Family = family_of(name)
        self.stock = self.family.build()
        self.inputs = self.family.inputs(self.stock, [ROW, OTHER_ROW])
        self.wrapper = RudderForConditionalGeneration.from_base(self.family.build(), settings())
        self.options: dict[str, Any] = {"custom_generate": str(repo), "trust_remote_code": True}

    def run(self, **options: Any) -> Any:
        return run(self.stock, self.inputs, **self.options, **options)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    write_repo(settings(base_model_name_or_path="org/any"), folder)
    return folder


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest, repo: Path) -> Case:
    return Case(request.param, repo)


@pytest.fixture
def llava(repo: Path) -> Case:
    return Case("llava", repo)


def test_equals_the_wrapper(case: Case) -> None:
    """Tokens, logits and trace, without a warning; and nothing stays on the model."""
    before = snapshot_of_used(case.stock, case.inputs)
    vanilla = run(case.stock, case.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steered = case.run(output_rudder=True)
    assert_same(steered, run(case.wrapper, case.inputs, output_rudder=True))
    assert_different(steered, vanilla)
    assert snapshot(case.stock) == before
    assert_same(run(case.stock, case.inputs), vanilla)


OPTIONS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True},
    "other settings": {"rudder": {"alpha_max": 2.0, "mode": "add"}},
    "settings of rows": {"rudder": {"alpha_max": [0.0, 9.0]}},
    "unsteered": {"rudder": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options: dict[str, Any], case: Case) -> None:
    torch.manual_seed(0)
    steered = case.run(**options)
    torch.manual_seed(0)
    assert_same(steered, run(case.wrapper, case.inputs, **options))


@pytest.mark.parametrize("name", ["llava", "instructblip"])
@pytest.mark.parametrize("way", ["wrapper", "attach"])
def test_never_twice(name: str, way: str, repo: Path) -> None:
    """A model that is steered already is refused, and goes on as before."""
    case = Case(name, repo)
    model: Any = case.wrapper
    if way == "attach":
        model = case.stock
        attach(model, settings())
    wanted = run(model, case.inputs)
    with pytest.raises(ValueError, match="already steered"):
        run(model, case.inputs, **case.options)
    assert_same(run(model, case.inputs), wanted)


def test_other_calls_meanwhile(llava: Case) -> None:
    """While a steered call runs, a plain one from within it or from another thread is not steered."""
    vanilla = run(llava.stock, llava.inputs)
    alone = llava.family.inputs(llava.stock, [ROW])
    wanted = run(llava.wrapper, alone)
    seen: list[Any] = []

    def call() -> None:
        seen.append(run(llava.stock, llava.inputs))

    def call_in_thread() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    for callback in (call, call_in_thread):
        listener = Listener(3, callback)
        assert_same(run(llava.stock, alone, streamer=listener, **llava.options), wanted)
        assert_same(seen.pop(), vanilla)
        assert [token for put in listener.received[1:] for token in put] == new_tokens(wanted)[0].tolist()
        assert listener.ended


@pytest.mark.parametrize("name", ["llava", "instructblip"])
def test_threads_share_the_model(name: str, repo: Path) -> None:
    """A second steered call that begins and ends within the first has its own state and leaves the hooks."""
    case = Case(name, repo)
    alone = case.family.inputs(case.stock, [ROW])
    before = snapshot_of_used(case.stock, alone)
    wanted, other = run(case.wrapper, alone), run(case.wrapper, case.inputs, rudder={"alpha_max": 3.0})
    seen: list[Any] = []

    def call() -> None:
        thread = threading.Thread(target=lambda: seen.append(case.run(rudder={"alpha_max": 3.0})))
        thread.start()
        thread.join()

    assert_same(run(case.stock, alone, streamer=Listener(3, call), **case.options), wanted)
    assert_same(seen[0], other)
    assert snapshot(case.stock) == before


def test_other_settings_meanwhile(llava: Case, tmp_path: Path) -> None:
    """Settings for another layer cannot be used on a model while it is borrowed."""
    write_repo(settings(layer=1), tmp_path)
    alone = llava.family.inputs(llava.stock, [ROW])

    def call() -> None:
        with pytest.raises(ValueError, match="already steered"):
            run(llava.stock, alone, custom_generate=str(tmp_path), trust_remote_code=True)

    run(llava.stock, alone, streamer=Listener(3, call), **llava.options)


def test_hooks_go_when_a_call_fails(llava: Case) -> None:
    before = snapshot_of_used(llava.stock, llava.inputs)
    alone = llava.family.inputs(llava.stock, [ROW])

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(llava.stock, alone, streamer=Listener(3, interrupt), **llava.options)
    with pytest.raises(ValueError, match="alpha_max"):
        llava.run(rudder={"alpha_max": -1.0})
    assert snapshot(llava.stock) == before


def test_arguments_for_the_hub_are_not_for_the_model(llava: Case) -> None:
    wanted = llava.run()
    assert_same(llava.run(cache_dir="elsewhere", token=False, force_download=False), wanted)


def test_peft(llava: Case) -> None:
    """A LoRA'd model delegates to the model in it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=r".*language_model.*\.q_proj", init_lora_weights=False)
    adapted = get_peft_model(llava.family.build(), lora).eval()
    steered: Tensor = run(adapted, llava.inputs, **llava.options)
    wrapper = RudderForConditionalGeneration.from_base(adapted, settings())
    assert_same(steered, run(wrapper, llava.inputs))
