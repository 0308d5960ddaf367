"""Generations and copies do not reach into each other: threads, nesting, failures, deep copies."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import StoppingCriteriaList

from rudder_hf import RudderForConditionalGeneration, attach
from rudder_hf.core.generate import handle_of
from rudder_hf.core.state import GenerationState
from tests.support.helpers import (
    LAYER,
    OTHER_ROW,
    ROW,
    Listener,
    assert_different,
    assert_same,
    family_of,
    fresh,
    in_threads,
    logits,
    rudder_parts,
    run,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
    target_layer,
)
from tests.support.zoo import FAMILIES, Row

# Qwen-VL keeps the rope positions of the last call on the model, so that threads disturb each other without RUDDER.
THREADED = [
    ("llava", "wrapper"),
    ("llava", "attach"),
    ("llava-plain", "attach"),
    ("idefics2", "wrapper"),
    ("instructblip", "wrapper"),
    ("gemma3", "attach"),
]

# Eight calls that differ in prompt, batch and settings.
CALLS: tuple[tuple[tuple[Row, ...], dict[str, Any]], ...] = (
    ((ROW,), {}),
    ((Row(2, 5), Row(3, 11)), {"rudder": {"alpha_max": [0.0, 9.0]}, "output_rudder": True}),
    ((Row(4, 9),), {"rudder": False}),
    ((Row(5, 6),), {"rudder": {"mode": "add", "alpha_max": 3.0}, "output_rudder": True}),
    ((Row(6, 8), Row(7, 8)), {"rudder": {"k": 1.0, "alpha_max": [6.0, 0.0]}}),
    ((Row(8, 12),), {"rudder": {"norm_cap": 2.0, "pool": "norm", "steer_first_token": True}, "output_rudder": True}),
    ((ROW,), {"rudder": {"alpha_max": 12.0, "g_min": 0.5}, "num_beams": 2}),
    ((Row(9, 4),), {"rudder": False, "output_rudder": True}),
)


@pytest.mark.parametrize(("name", "way"), THREADED)
def test_threads_equal_serial_runs(name: str, way: str) -> None:
    """Eight threads on one model, each with a prompt and settings of its own, get what they get alone."""
    family = family_of(name)
    model = family.build()
    calls = [(family.inputs(model, batch), options) for batch, options in CALLS]
    before = snapshot_of_used(model, calls[0][0])
    steered_model, remove = steered_by(way, model)
    expected = [run(steered_model, inputs, **options) for inputs, options in calls]
    for _ in range(2 if name == "llava" else 1):
        jobs = [lambda c=call: run(steered_model, c[0], **c[1]) for call in calls]
        for output, wanted in zip(in_threads(jobs), expected, strict=True):
            assert_same(output, wanted)
    remove()
    assert snapshot(model) == before


STEERED: dict[str, Any] = {"output_rudder": True}
VANILLA: dict[str, Any] = {"rudder": False}
ADD: dict[str, Any] = {"rudder": {"mode": "add", "alpha_max": 9.0}}


@pytest.mark.parametrize(
    ("name", "outer", "inner"),
    [
        ("llava", STEERED, STEERED),
        ("llava", STEERED, VANILLA),
        ("llava", STEERED, ADD),
        ("llava", VANILLA, STEERED),
        ("llava-plain", STEERED, ADD),
        ("llava-plain", STEERED, VANILLA),
        ("instructblip", STEERED, ADD),
        ("instructblip", STEERED, VANILLA),
        ("instructblip", VANILLA, STEERED),
        ("qwen2_5_vl", STEERED, VANILLA),
    ],
)
def test_generate_inside_a_streamer(name: str, outer: dict[str, Any], inner: dict[str, Any]) -> None:
    """A streamer that generates with the same model, on another prompt, disturbs neither generation."""
    family = family_of(name)
    model = family.build()
    inputs, others = family.inputs(model, [ROW]), family.inputs(model, [OTHER_ROW])
    if name == "qwen2_5_vl":
        # Stock Qwen keeps rope positions on the model: only a prompt of the same shape leaves them right.
        others = family.inputs(model, [Row(seed=5, words=ROW.words)])
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted_inner = run(wrapper, others, **inner)
    wanted_outer = run(wrapper, inputs, **outer)
    nested: list[Any] = []
    for at in (1, 2, 5):
        listener = Listener(at, lambda: nested.append(run(wrapper, others, **inner)))
        output = run(wrapper, inputs, streamer=listener, **outer)
        assert_same(output, wanted_outer)
        assert_same(nested.pop(), wanted_inner)


def test_nesting_three_deep_and_on_another_model() -> None:
    """Generations stand in each other like boxes, those of another steered model too."""
    family = FAMILIES["llava"]
    first, second = family.build(), FAMILIES["idefics2"].build()
    inputs, others = family.inputs(first, [ROW]), FAMILIES["idefics2"].inputs(second, [OTHER_ROW])
    with attach(first, settings()), attach(second, settings(alpha_max=9.0)):
        wanted = [run(first, inputs), run(second, others), run(first, inputs, rudder={"alpha_max": 12.0})]
        outputs: dict[int, Any] = {}

        def innermost() -> None:
            outputs[2] = run(first, inputs, rudder={"alpha_max": 12.0})

        def middle() -> None:
            outputs[1] = run(second, others, streamer=Listener(3, innermost))

        outputs[0] = run(first, inputs, streamer=Listener(4, middle))
        for index in range(3):
            assert_same(outputs[index], wanted[index])


@pytest.mark.parametrize("rudder", [None, False], ids=["steered", "vanilla"])
@pytest.mark.parametrize("name", ["llava", "llava-plain", "instructblip"])
def test_a_part_used_by_itself_while_a_generation_runs(name: str, rudder: Any) -> None:
    """The decoder, past the model around it, and the language model in InstructBLIP are stock between two tokens."""
    family = family_of(name)
    model, inputs = fresh(family)
    text = {"input_ids": torch.tensor([[11, 12, 13, 14]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}

    def use() -> torch.Tensor:
        if name == "instructblip":
            return logits(run(model.language_model, text))
        with torch.no_grad():
            return model.get_submodule(family.layers.removesuffix(".layers"))(**text).last_hidden_state

    wanted_alone = use()
    with attach(model, settings()):
        wanted = run(model, inputs, rudder=rudder)
        seen = [use()]
        assert_same(run(model, inputs, rudder=rudder, streamer=Listener(3, lambda: seen.append(use()))), wanted)
    assert len(seen) == 2
    assert all(torch.equal(each, wanted_alone) for each in seen)


# Failures


class Broken(Exception):
    """What the failing parts below raise."""


class Fuse:
    """Raises at the n-th use, once."""

    def __init__(self, error: type[BaseException], at: int) -> None:
        self.error, self.left = error, at

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("on purpose")


@contextmanager
def hooked(module: torch.nn.Module, fuse: Fuse) -> Iterator[None]:
    """A module that fails when it is called."""
    handle = module.register_forward_pre_hook(lambda *args: fuse())
    try:
        yield
    finally:
        handle.remove()


def failing(place: str, fuse: Fuse, layer: torch.nn.Module) -> tuple[dict[str, Any], AbstractContextManager[Any]]:
    """Arguments for `generate`, and a context, that make it fail at a place."""
    if place == "processor":
        return {"logits_processor": [lambda ids, scores: fuse() or scores]}, nullcontext()
    if place == "criteria":
        stop = StoppingCriteriaList([lambda ids, scores, **rest: torch.full((len(ids),), fuse() is not None)])
        return {"stopping_criteria": stop}, nullcontext()
    if place == "streamer":
        return {"streamer": SimpleNamespace(put=fuse, end=lambda: None)}, nullcontext()
    # Inside self-attention, so between RUDDER's two hooks; or after it, in the same layer.
    return {}, hooked(layer.get_submodule("self_attn.o_proj" if place == "attention" else "mlp"), fuse)


PLACES = ("processor", "criteria", "streamer", "attention", "mlp")


@pytest.mark.parametrize(
    ("name", "error", "place"),
    [
        *((name, error, place) for name in ("llava",) for error in (Broken, KeyboardInterrupt) for place in PLACES),
        ("llava-plain", Broken, "attention"),
        ("llava-plain", KeyboardInterrupt, "mlp"),
        ("instructblip", Broken, "streamer"),
        ("instructblip", KeyboardInterrupt, "attention"),
    ],
)
def test_failure_in_mid_generation(name: str, error: type[BaseException], place: str) -> None:
    """After a generation that broke off, steered and unsteered calls are what they were, and so is removal."""
    family = family_of(name)
    model = family.build()
    inputs, others = family.inputs(model, [ROW]), family.inputs(model, [OTHER_ROW])
    vanilla = run(model, inputs)
    before = snapshot(model)
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted = [run(wrapper, each, output_rudder=True) for each in (inputs, others)]

    def fail(at: int) -> None:
        options, context = failing(place, Fuse(error, at), target_layer(family, model))
        with context, pytest.raises(error):
            run(wrapper, inputs, **options)

    fail(3)
    assert_same(run(wrapper, others, output_rudder=True), wanted[1])
    fail(3)
    assert_same(run(wrapper, inputs, rudder=False), vanilla)
    fail(1)
    assert_same(run(wrapper, inputs, output_rudder=True), wanted[0])
    assert_same(run(wrapper.unwrap(), inputs), vanilla)
    assert snapshot(model) == before


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["llava", "llava-plain"])
def test_failure_leaves_nothing_behind(name: str, error: type[BaseException]) -> None:
    """After a failure inside self-attention no state stays alive, and the parts can be called by themselves."""
    family = family_of(name)
    model, inputs = fresh(family)
    decoder, attention = model.model.language_model, target_layer(family, model).self_attn
    arguments: list[dict[str, Any]] = []
    hook = attention.register_forward_pre_hook(lambda m, a, kw: arguments.append(kw), with_kwargs=True)
    ids = torch.tensor([[11, 12, 13, 14, 15]])
    with torch.no_grad():
        wanted = decoder(ids, use_cache=False).last_hidden_state
        wanted_alone = attention(**{**arguments[0]})[0]
    hook.remove()
    with attach(model, settings()):
        for _ in range(2):
            with hooked(attention.o_proj, Fuse(error, 3)), pytest.raises(error):
                run(model, inputs)
            with torch.no_grad():
                assert torch.equal(attention(**arguments[0])[0], wanted_alone)
                assert torch.equal(decoder(ids, use_cache=False).last_hidden_state, wanted)
        with hooked(attention.o_proj, Fuse(error, 3)), pytest.raises(error):
            run(model, inputs)
        assert no_state_is_alive()
        output = run(model, inputs, output_rudder=True)
        assert output.rudder.card.shape == (1, 32)
        assert no_state_is_alive(), "the state of a finished generation"


def no_state_is_alive() -> bool:
    gc.collect()
    return not [each for each in gc.get_objects() if type(each) is GenerationState]


# Copies


@pytest.mark.parametrize("first", ["original", "copy"])
@pytest.mark.parametrize("way", ["wrapper", "attach"])
@pytest.mark.parametrize("name", ["llava", "llava-plain", "instructblip"])
def test_a_deepcopy_is_independent(name: str, way: str, first: str) -> None:
    """It has settings, weights and hooks of its own; removing RUDDER from either leaves the other steered."""
    model, inputs = fresh(name)
    vanilla, before = run(model, inputs), snapshot(model)
    steered, _ = steered_by(way, model)
    wanted = run(steered, inputs, output_rudder=True)
    stronger = run(steered, inputs, rudder={"alpha_max": 12.0})
    twin = copy.deepcopy(steered)
    assert_same(run(twin, inputs, output_rudder=True), wanted)
    copied = twin.model if way == "wrapper" else twin
    config = twin.config if way == "wrapper" else handle_of(twin).config
    config.alpha_max = 12.0
    assert_same(run(twin, inputs), stronger)
    assert_same(run(steered, inputs, output_rudder=True), wanted)

    # The copy's own weights are steered, not the original's.
    with torch.no_grad():
        twin.get_output_embeddings().weight.neg_()
    changed = run(twin, inputs)
    assert_different(changed, stronger)
    config.layer = 1
    assert_different(run(twin, inputs), changed)
    assert_same(run(steered, inputs, output_rudder=True), wanted)
    config.layer = LAYER

    handles = {"original": handle_of(model), "copy": handle_of(copied)}
    handles.pop(first).remove()
    (kept,) = handles.values()
    if first == "original":
        assert_same(run(twin, inputs), changed)
    else:
        assert_same(run(steered, inputs, output_rudder=True), wanted)
    kept.remove()
    assert_same(run(model, inputs), vanilla)
    assert snapshot(model) == before
    assert not rudder_parts(copied)
    with torch.no_grad():
        copied.get_output_embeddings().weight.neg_()
    assert_same(run(copied, inputs), vanilla)


def test_deepcopy_of_a_handle() -> None:
    """It comes with a copy of the model, which it steers."""
    model = FAMILIES["llava"].build()
    with attach(model, settings()) as handle:
        twin = copy.deepcopy(handle)
        assert handle_of(twin.backbone.model) is twin
        twin.remove()
        assert not rudder_parts(twin.backbone.model)
        assert handle_of(model) is handle


def test_a_deepcopy_does_not_keep_its_moment() -> None:
    """Made while steering is switched off, or in the middle of a generation, it is steered and can be cleaned."""
    model, inputs = fresh()
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted = run(wrapper, inputs)
    with wrapper.rudder_disabled():
        copies = [copy.deepcopy(wrapper)]
    run(wrapper, inputs, streamer=Listener(3, lambda: copies.append(copy.deepcopy(wrapper))))
    for twin in copies:
        assert_same(run(twin, inputs), wanted)
        assert not rudder_parts(twin.unwrap())


@pytest.mark.parametrize("way", ["wrapper", "attach"])
def test_a_steered_model_is_not_pickled(way: str) -> None:
    model = FAMILIES["llava"].build()
    steered, remove = steered_by(way, model)
    with pytest.raises(TypeError, match="cannot be pickled: remove RUDDER first"):
        pickle.dumps(steered)
    remove()
    pickle.dumps(model)
