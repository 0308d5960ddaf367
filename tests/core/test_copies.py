"""Copies of steered models are independent, and no model is steered twice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rudder_hf import RudderForConditionalGeneration, attach
from rudder_hf.core.generate import handle_of
from tests.support.helpers import (
    LAYER,
    ROW,
    Listener,
    assert_different,
    assert_same,
    family_of,
    rudder_parts,
    run,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
)
from tests.support.zoo import FAMILIES


@pytest.mark.parametrize("name", ["llava", "llava-plain", "instructblip"])
def test_deepcopy_of_a_wrapper(name: str) -> None:
    """A copy has settings, weights and hooks of its own."""
    family = family_of(name)
    model = family.build()
    inputs = family.inputs(model, [ROW])
    vanilla = run(model, inputs)
    before = snapshot(model)
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted = run(wrapper, inputs, output_rudder=True)
    stronger = run(wrapper, inputs, rudder={"alpha_max": 12.0})
    twin = copy.deepcopy(wrapper)
    assert_same(run(twin, inputs, output_rudder=True), wanted)

    twin.config.alpha_max = 12.0
    assert_same(run(twin, inputs), stronger)
    assert_same(run(wrapper, inputs, output_rudder=True), wanted)

    # The copy's own weights are steered, not the original's.
    with torch.no_grad():
        twin.get_output_embeddings().weight.neg_()
    changed = run(twin, inputs)
    assert_different(changed, stronger)
    assert_same(run(wrapper, inputs, output_rudder=True), wanted)
    twin.config.layer = 1
    run(twin, inputs)
    assert_same(run(wrapper, inputs, output_rudder=True), wanted)

    copied_base = twin.unwrap()
    assert_same(run(wrapper, inputs, output_rudder=True), wanted)
    assert_same(run(wrapper.unwrap(), inputs), vanilla)
    assert snapshot(model) == before
    assert not rudder_parts(copied_base)
    with torch.no_grad():
        copied_base.get_output_embeddings().weight.neg_()
    assert_same(run(copied_base, inputs), vanilla)


@pytest.mark.parametrize("name", ["llava", "llava-plain", "instructblip"])
def test_deepcopy_of_an_attached_model(name: str) -> None:
    """Removing RUDDER from a copy or from the original leaves the other steered."""
    family = family_of(name)
    for first_removed in ("original", "copy"):
        model = family.build()
        inputs = family.inputs(model, [ROW])
        vanilla = run(model, inputs)
        handle = attach(model, settings())
        wanted = run(model, inputs, output_rudder=True)
        twin = copy.deepcopy(model)
        twin_handle = handle_of(twin)
        twin_handle.config.alpha_max = 0.0
        assert_same(run(twin, inputs), vanilla)
        assert_same(run(model, inputs, output_rudder=True), wanted)
        twin_handle.config.alpha_max = handle.config.alpha_max
        handles = {"original": (model, handle), "copy": (twin, twin_handle)}
        removed, removed_handle = handles.pop(first_removed)
        (kept, kept_handle), *_ = handles.values()
        removed_handle.remove()
        assert_same(run(removed, inputs), vanilla)
        assert not rudder_parts(removed)
        assert_same(run(kept, inputs, output_rudder=True), wanted)
        kept_handle.config.alpha_max = 0.0
        assert_same(run(kept, inputs), vanilla)
        kept_handle.remove()
        assert not rudder_parts(kept)
        assert_same(run(kept, inputs), vanilla)


def test_deepcopy_of_a_handle() -> None:
    """It comes with a copy of the model, which it steers."""
    model = FAMILIES["llava"].build()
    with attach(model, settings()) as handle:
        twin = copy.deepcopy(handle)
        assert handle_of(twin.backbone.model) is twin
        twin.remove()
        assert not rudder_parts(twin.backbone.model)
        assert handle_of(model) is handle


def test_deepcopy_within_disabled() -> None:
    """A copy made while steering is switched off for a while is not switched off for ever."""
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, [ROW])
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted = run(wrapper, inputs)
    with wrapper.rudder_disabled():
        twin = copy.deepcopy(wrapper)
    assert_same(run(twin, inputs), wanted)


def test_deepcopy_within_a_generation() -> None:
    """A copy made in the middle of a generation can be used and cleaned."""
    family = FAMILIES["llava"]
    model = family.build()
    inputs = family.inputs(model, [ROW])
    wrapper = RudderForConditionalGeneration.from_base(model, settings())
    wanted = run(wrapper, inputs)
    copies: list[Any] = []
    run(wrapper, inputs, streamer=Listener(3, lambda: copies.append(copy.deepcopy(wrapper))))
    assert_same(run(copies[0], inputs), wanted)
    assert not rudder_parts(copies[0].unwrap())


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
    family = family_of(name)
    model = family.build()
    inputs = family.inputs(model, [ROW])
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


@pytest.mark.parametrize("second", [_wrap, _attach])
def test_the_language_model_of_a_steered_model_is_refused(second: Callable[[Any], Any]) -> None:
    """InstructBLIP's language model reads no image by itself: neither before nor after the whole model is steered."""
    model = FAMILIES["instructblip"].build()
    with pytest.raises(ValueError, match="text-only model"):
        second(model.language_model)
    with attach(model, settings()):
        installed = snapshot(model)
        with pytest.raises(ValueError, match="text-only model"):
            second(model.language_model)
        assert snapshot(model) == installed


def test_models_that_share_layers_are_refused() -> None:
    """Two models over one decoder would steer it twice."""
    first, second = FAMILIES["llava"].build(), FAMILIES["llava"].build()
    second.model.language_model = first.model.language_model
    with attach(first, settings()), pytest.raises(ValueError, match="already steered"):
        attach(second, settings())
    attach(second, settings(layer=LAYER)).remove()
