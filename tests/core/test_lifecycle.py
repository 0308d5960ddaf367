"""Installing and removing: before, during and after; when it fails half-way; while a generation runs; never twice."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from rudder_hf import RudderConfig, RudderForConditionalGeneration, attach
from tests.support.helpers import (
    LAYER,
    NEW,
    Listener,
    assert_different,
    assert_same,
    family_of,
    fresh,
    rudder_parts,
    run,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
    target_layer,
)
from tests.support.zoo import FAMILIES

CASES = (
    ("llava", "wrapper"),
    ("llava", "attach"),
    ("llava-plain", "wrapper"),
    ("idefics2", "attach"),
    ("instructblip", "wrapper"),
    ("instructblip", "attach"),
    ("qwen2_5_vl", "wrapper"),
    ("gemma3", "attach"),
    ("blip-2", "wrapper"),
    ("glm4v", "attach"),
)


def comes_and_goes(way: str, model: Any, inputs: dict[str, Any]) -> None:
    """Off, it is the base bit for bit; removal leaves every attribute, hook and method of every module as it was."""
    vanilla, before = run(model, inputs), snapshot(model)
    steered, remove = steered_by(way, model)
    assert rudder_parts(model)
    output = run(steered, inputs)
    assert_same(run(steered, inputs, rudder=False), vanilla)
    for mode in ("beta", "add"):
        assert_same(run(steered, inputs, rudder={"alpha_max": 0.0, "mode": mode}), vanilla)
        assert_different(run(steered, inputs, rudder={"mode": mode}), vanilla)
    for _ in range(2):
        remove()
        assert snapshot(model) == before
    assert not rudder_parts(model)
    assert_same(run(model, inputs), vanilla)
    # And again: nothing of the first time is in the way.
    steered, remove = steered_by(way, model)
    assert_same(run(steered, inputs), output)
    remove()
    assert snapshot(model) == before


@pytest.mark.parametrize(("name", "way"), CASES)
def test_before_during_after(name: str, way: str) -> None:
    model, inputs = fresh(name)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    comes_and_goes(way, model, inputs)
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_handle_can_be_installed_again() -> None:
    """A handle that was removed, here by a block that ended in an error, goes back on; one that is on is refused."""
    model, inputs = fresh()
    before = snapshot_of_used(model, inputs)
    handle = attach(model, settings())
    wanted = run(model, inputs)
    with pytest.raises(KeyError), handle:
        raise KeyError
    assert not handle.installed
    assert snapshot(model) == before
    handle.install()
    with pytest.raises(ValueError, match="already steered"):
        handle.install()
    assert_same(run(model, inputs), wanted)
    handle.remove()
    assert snapshot(model) == before


def test_unwrapped_wrapper_refuses() -> None:
    """A wrapper without its hooks does not pass for a steered model."""
    model, inputs = fresh()
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    assert wrapper.unwrap() is model
    assert wrapper.unwrap() is model
    with pytest.raises(RuntimeError, match="unwrapped"):
        wrapper.generate(**inputs)


# What others have put on the model


def test_methods_of_the_instance_are_kept() -> None:
    """A method that the user has put on the instance is called under RUDDER and comes back after it."""
    family = family_of("llava")
    model, inputs = fresh(family)
    calls: list[str] = []

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("generate")
        return type(self).generate(self, *args, **kwargs)

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("prepare")
        return type(self).prepare_inputs_for_generation(self, *args, **kwargs)

    reference = family.build()
    with attach(reference, settings()):
        wanted = run(reference, inputs)
    model.generate = types.MethodType(generate, model)
    model.prepare_inputs_for_generation = types.MethodType(prepare, model)
    before = snapshot_of_used(model, inputs)
    calls.clear()
    with attach(model, settings()):
        assert_same(run(model, inputs), wanted)
    assert calls[0] == "generate"
    assert "prepare" in calls
    assert snapshot(model) == before
    calls.clear()
    run(model, inputs)
    assert calls[0] == "generate"


def test_hooks_of_others_are_kept() -> None:
    """Hooks that stand on the target layer run under RUDDER, in their order, and stay when it goes."""
    model, inputs = fresh()
    attention = target_layer(FAMILIES["llava"], model).self_attn
    vanilla = run(model, inputs)
    seen: list[tuple[str, torch.Tensor]] = []
    handles = [attention.register_forward_hook(lambda m, a, output: seen.append(("first", output[0].clone())))]
    handle = attach(model, settings())
    handles.append(attention.register_forward_hook(lambda m, a, output: seen.append(("last", output[0].clone()))))
    run(model, inputs, max_new_tokens=2)
    assert [name for name, _ in seen] == ["first", "last"] * 2
    # In the prefill nothing is added; in the first step the later hook sees the push of alpha_max * gate.
    assert torch.equal(seen[0][1], seen[1][1])
    assert 0.1 < (seen[3][1] - seen[2][1]).norm() < 6.0
    handle.remove()
    seen.clear()
    assert_same(run(model, inputs), vanilla)
    assert [name for name, _ in seen[:2]] == ["first", "last"]
    for other in handles:
        other.remove()


# Failing half-way


def _refuse_hook(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no hooks here")


@pytest.mark.parametrize(
    ("name", "way", "path", "method"),
    [
        ("llava", "wrapper", f"model.language_model.layers.{LAYER}", "register_forward_pre_hook"),
        ("llava", "attach", f"model.language_model.layers.{LAYER}.self_attn", "register_forward_hook"),
        ("llava-plain", "wrapper", "", "register_forward_hook"),
        ("llava-plain", "attach", f"model.language_model.layers.{LAYER}.self_attn", "register_forward_hook"),
        ("instructblip", "wrapper", f"language_model.model.layers.{LAYER}.self_attn", "register_forward_hook"),
        ("gemma3", "attach", f"model.language_model.layers.{LAYER}.post_attention_layernorm", "register_forward_hook"),
    ],
)
def test_installing_fails_half_way(
    name: str, way: str, path: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a module takes no hook, what was installed before it is taken back."""
    model, inputs = fresh(name)
    vanilla = run(model, inputs)
    before = snapshot(model)
    with monkeypatch.context() as patch:
        patch.setattr(model.get_submodule(path), method, _refuse_hook, raising=True)
        patched = snapshot(model)
        with pytest.raises(RuntimeError, match="no hooks here"):
            steered_by(way, model)
        assert snapshot(model) == patched
    assert snapshot(model) == before
    assert_same(run(model, inputs), vanilla)
    steered, remove = steered_by(way, model)
    assert_different(run(steered, inputs), vanilla)
    remove()
    assert snapshot(model) == before


def test_what_is_refused_is_left_alone() -> None:
    """A layer that does not exist, and what has no decoder or no `generate`, are refused before anything is put on."""
    model = FAMILIES["llava"].build()
    refused = [(model, 4), (model, -5), (model.model, 0), (nn.Linear(2, 2), 0)]
    for part, layer in refused:
        before = snapshot(part)
        with pytest.raises(ValueError, match="4 decoder layers" if part is model else "AutoModelForImageTextToText"):
            attach(part, settings(layer=layer))
        assert snapshot(part) == before


def test_a_handle_shows_where_it_is_and_its_settings() -> None:
    model = FAMILIES["llava"].build()
    handle = attach(model, settings(layer=-1, span="text"))
    config = "RudderConfig(layer=-1, alpha_max=6.0, span='text')"
    assert repr(handle) == f"<SteeringHandle: installed, layer 3 of 4 in LlavaForConditionalGeneration, {config}>"
    assert eval(config, {"RudderConfig": RudderConfig}).settings() == handle.config.settings()
    handle.remove()
    assert "not installed" in repr(handle)


# Changing the layer


@pytest.mark.parametrize("way", ["wrapper", "attach"])
def test_layer_can_be_changed(way: str) -> None:
    """A new layer in the config moves the hooks: the output is that of a fresh installation there, and back."""
    model, inputs = fresh()
    before = snapshot_of_used(model, inputs)
    wanted = {}
    for layer in (1, 2):
        with attach(model, settings(layer=layer)):
            wanted[layer] = run(model, inputs, output_rudder=True)
    steered, remove = steered_by(way, model)
    config = steered.config if way == "wrapper" else model._rudder_handle.config
    for layer in (2, 1, -3, 2, -2):
        config.layer = layer
        assert_same(run(steered, inputs, output_rudder=True), wanted[layer % 4])
    config.layer = 9
    with pytest.raises(ValueError, match="4 decoder layers"):
        run(steered, inputs)
    config.layer = 1
    assert_same(run(steered, inputs, output_rudder=True), wanted[1])
    remove()
    assert snapshot(model) == before


def test_changing_the_layer_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the new layer takes no hook, the call fails; once it takes one, the new layer is steered."""
    family = family_of("llava")
    model, inputs = fresh(family)
    before = snapshot_of_used(model, inputs)
    with attach(model, settings(layer=1)):
        wanted = run(model, inputs)
    handle = attach(model, settings())
    first = run(model, inputs)
    handle.config.layer = 1
    with monkeypatch.context() as patch:
        patch.setattr(target_layer(family, model, 1).self_attn, "register_forward_hook", _refuse_hook)
        with pytest.raises(RuntimeError, match="no hooks here"):
            run(model, inputs)
        handle.config.layer = LAYER
        assert_same(run(model, inputs), first)
        handle.config.layer = 1
        with pytest.raises(RuntimeError, match="no hooks here"):
            run(model, inputs)
    assert_same(run(model, inputs), wanted)
    handle.remove()
    assert snapshot(model) == before


# While a generation runs


@pytest.mark.parametrize(("name", "way"), [("llava", "wrapper"), ("llava", "attach"), ("instructblip", "wrapper")])
@pytest.mark.parametrize("rudder", [None, False], ids=["steered", "vanilla"])
def test_removal_from_within_is_refused(name: str, way: str, rudder: Any) -> None:
    """A generation keeps its hooks to its end, also against its own streamer."""
    model, inputs = fresh(name)
    before = snapshot_of_used(model, inputs)
    steered, remove = steered_by(way, model)
    wanted = run(steered, inputs, rudder=rudder)
    refusals: list[RuntimeError] = []

    def try_to_remove() -> None:
        with pytest.raises(RuntimeError, match="generation is running") as caught:
            remove()
        refusals.append(caught.value)

    assert_same(run(steered, inputs, streamer=Listener(3, try_to_remove), rudder=rudder), wanted)
    assert refusals
    assert_same(run(steered, inputs, rudder=rudder), wanted)
    remove()
    assert snapshot(model) == before


@pytest.mark.parametrize("rudder", [None, False], ids=["steered", "vanilla"])
def test_removal_waits_for_other_threads(rudder: Any) -> None:
    """Removal in one thread lets the generation of another end as it began."""
    model, inputs = fresh()
    before = snapshot_of_used(model, inputs)
    handle = attach(model, settings())
    wanted = run(model, inputs, rudder=rudder)
    remover = threading.Thread(target=handle.remove)

    def start_to_remove() -> None:
        remover.start()
        remover.join(timeout=0.2)
        assert remover.is_alive()
        assert handle.installed

    assert_same(run(model, inputs, streamer=Listener(3, start_to_remove), rudder=rudder), wanted)
    remover.join(timeout=30)
    assert not handle.installed
    assert snapshot(model) == before


def test_change_of_layer_waits_for_other_threads() -> None:
    """A call that moves the hooks waits for those of other threads, and is refused from within one."""
    model, inputs = fresh()
    with attach(model, settings(layer=1)):
        wanted_after = run(model, inputs)
    with attach(model, settings()) as handle:
        wanted = run(model, inputs)
        outputs: list[Any] = []
        other = threading.Thread(target=lambda: outputs.append(run(model, inputs)))

        def change() -> None:
            handle.config.layer = 1
            other.start()
            with pytest.raises(RuntimeError, match="generation is running"):
                run(model, inputs)
            assert not outputs

        assert_same(run(model, inputs, streamer=Listener(3, change)), wanted)
        other.join(timeout=30)
        assert_same(outputs[0], wanted_after)
        assert_same(run(model, inputs), wanted_after)


def test_settings_changed_while_running() -> None:
    """New settings are for the next call; the running one ends as it began."""
    model, inputs = fresh()
    with attach(model, settings()) as handle:
        wanted, stronger = run(model, inputs), run(model, inputs, rudder={"alpha_max": 12.0})

        def change() -> None:
            handle.config.alpha_max = 12.0

        assert_same(run(model, inputs, streamer=Listener(3, change)), wanted)
        assert_same(run(model, inputs), stronger)


def test_an_interrupt_as_a_generation_begins_leaves_no_mark() -> None:
    """Else removal would wait for a generation that never ran."""
    model, inputs = fresh()
    handle = attach(model, settings())
    lock = handle._lock

    class Interrupted:
        def __enter__(self) -> Any:
            return lock.__enter__()

        def __exit__(self, *exception: Any) -> None:
            lock.__exit__(*exception)
            handle._lock = lock
            raise KeyboardInterrupt

    handle._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run(model, inputs)
    assert not handle._running
    handle.remove()


@pytest.mark.parametrize("name", ["llava", "instructblip"])
def test_methods_kept_beyond_removal(name: str) -> None:
    """A method that someone took from the steered model (PEFT does) is the stock one once RUDDER is gone."""
    family = family_of(name)
    model, inputs = fresh(family)
    vanilla = run(model, inputs)
    loop = model.get_submodule(family.loop)
    handle = attach(model, settings())
    generate, prepare, generate_in_loop = model.generate, loop.prepare_inputs_for_generation, loop.generate
    handle.remove()
    ids = torch.tensor([[11, 12, 13]])
    assert torch.equal(generate(**inputs, max_new_tokens=NEW), vanilla.sequences)
    assert torch.equal(prepare(ids)["input_ids"], loop.prepare_inputs_for_generation(ids)["input_ids"])
    assert torch.equal(generate_in_loop(ids, max_new_tokens=3), loop.generate(ids, max_new_tokens=3))


@pytest.mark.parametrize("layer", [LAYER, 1])
def test_removal_overtakes_a_call(layer: int) -> None:
    """A call that was about to begin when another thread removed RUDDER runs as on the stock model."""
    model, inputs = fresh()
    vanilla = run(model, inputs)
    before = snapshot(model)
    handle = attach(model, settings())
    handle.config.layer = layer

    class Cache(DynamicCache):
        """Has RUDDER removed as soon as the call has a look at it."""

        def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
            if handle.installed:
                handle.remove()
            return super().get_seq_length(*args, **kwargs)

    output = run(model, inputs, past_key_values=Cache(config=model.config.get_text_config()))
    assert snapshot(model) == before
    assert_same(output, vanilla)


def test_hooks_that_vanish_during_a_generation_are_noticed() -> None:
    """A hook that is missing only from the second forward on would leave the rest of the answer unsteered."""
    model, inputs = fresh()
    with attach(model, settings()) as handle:

        class Vanishing(LogitsProcessor):
            def __call__(self, input_ids: Any, scores: Any) -> Any:
                for hook in handle._hooks:
                    hook.remove()
                return scores

        with pytest.raises(RuntimeError, match="hook did not run"):
            run(model, inputs, logits_processor=LogitsProcessorList([Vanishing()]))


# Twice on one model


def _wrap(model: Any) -> Any:
    return RudderForConditionalGeneration.from_base(model, settings(alpha_max=1.0))


def _attach(model: Any) -> Any:
    return attach(model, settings(alpha_max=1.0, layer=1))


@pytest.mark.filterwarnings("ignore:RUDDER is not tested on")
@pytest.mark.parametrize("second", [_wrap, _attach])
@pytest.mark.parametrize(
    ("name", "first", "target"),
    [
        ("llava", "wrapper", "base"),
        ("llava", "wrapper", "steered"),
        ("llava", "attach", "base"),
        ("instructblip", "wrapper", "steered"),
        ("instructblip", "attach", "base"),
    ],
)
def test_second_installation_is_refused(name: str, first: str, target: str, second: Callable[[Any], Any]) -> None:
    """A model is never steered twice, whichever of its parts is given; the first stays as it was."""
    model, inputs = fresh(name)
    before = snapshot_of_used(model, inputs)
    steered, remove = steered_by(first, model)
    wanted, installed = run(steered, inputs, output_rudder=True), snapshot(model)
    part = {"base": model, "steered": steered}[target]
    with pytest.raises(ValueError, match=r"steered.*(remove|unwrap)"):
        second(part)
    assert snapshot(model) == installed
    assert_same(run(steered, inputs, output_rudder=True), wanted)
    remove()
    assert snapshot(model) == before


def test_models_that_share_layers_are_refused() -> None:
    """Two models over one decoder would steer it twice."""
    first, second = FAMILIES["llava"].build(), FAMILIES["llava"].build()
    second.model.language_model = first.model.language_model
    with attach(first, settings()), pytest.raises(ValueError, match="already steered"):
        attach(second, settings())
    attach(second, settings(layer=LAYER)).remove()
