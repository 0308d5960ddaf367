"""Which images are chosen with and checked with, and what they say about layers, against a slow reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rudder_hf.calibrate import CalibrationData, find_data, layer_statistics
from rudder_hf.core.backbones import find_backbone
from rudder_hf.evaluate.run import encode_samples
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.errors import InputError
from tests.support.evaluating import loaded
from tests.support.zoo import FAMILIES, Row


def ids_of(data: CalibrationData) -> list[list[str]]:
    assert data.checking is not None
    return [[sample.id for sample in task.samples] for task in (data.choosing, data.checking)]


def test_images_to_choose_and_to_check_are_apart() -> None:
    data = find_data(DataOptions(), 20, 30)
    ids = ids_of(data)
    assert (len(ids[0]), len(ids[1])) == (20, 30)
    assert not set(ids[0]) & set(ids[1])
    assert ids_of(find_data(DataOptions(), 20, 30)) == ids
    files = {sample.image for sample in data.choosing.samples}
    assert not {name for part in ids_of(find_data(DataOptions(), 20, 30, exclude=files)) for name in part} & set(
        ids[0]
    )
    assert find_data(DataOptions(), 20, 0).checking is None
    with pytest.raises(InputError, match="lower --limit"):
        find_data(DataOptions(), 400, 10)
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(DataOptions(split="evaluation"), 5, 5)


def test_layer_statistics_equal_a_slow_reference() -> None:
    """One image, all layers, by hand: a plain forward over prompt and answer with bare hooks."""
    data = find_data(DataOptions(), 2, 0)
    model: Any = loaded().model
    inputs = encode_samples(loaded(), data.choosing, data.choosing.samples[:1])
    found = layer_statistics(model, [inputs])
    prompt = inputs["input_ids"].shape[1]
    with torch.no_grad():
        written = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        seen: list[tuple[Any, Any]] = []
        hooks = []
        for layer in model.model.language_model.layers:
            hooks.append(layer.register_forward_pre_hook(lambda m, a, k: seen.append((a[0], None)), with_kwargs=True))
            hooks.append(
                layer.self_attn.register_forward_hook(lambda m, a, o: seen.__setitem__(-1, (seen[-1][0], o[0])))
            )
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        model(input_ids=written[:, :-1], **rest, use_cache=False)
        for hook in hooks:
            hook.remove()
    for statistics, (h, update) in zip(found, seen, strict=True):
        lengths = update[0, :prompt].norm(dim=-1)
        assert statistics.update_norm == pytest.approx(float(lengths.mean()), rel=1e-4)
        relative = lengths / h[0, :prompt].norm(dim=-1)
        assert statistics.leverage == pytest.approx(float(relative.mean()), rel=1e-4)
        assert statistics.hidden_norm == pytest.approx(float(h[0, prompt:].norm(dim=-1).median()), rel=1e-4)


def test_layer_statistics_are_of_what_is_added_to_the_residual_stream() -> None:
    """Granite halves the attention output when it adds it."""
    family = FAMILIES["granite4_vision"]
    model = family.build()
    inputs = family.inputs(model, [Row(1, 4)])
    found = layer_statistics(model, [inputs])
    layer = find_backbone(model).layers[found[0].layer]
    assert layer.residual_multiplier == 0.5
    layer.residual_multiplier = 1.0
    # The first layer's update depends on no layer before it.
    assert found[0].update_norm == pytest.approx(layer_statistics(model, [inputs])[0].update_norm / 2, rel=1e-4)
