"""Bases that accelerate has spread over devices: layers on the CPU and on disk are steered like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from transformers import AutoModel, AutoModelForCausalLM

from rudder_hf import RudderForConditionalGeneration, attach
from tests.support.helpers import (
    LAYER,
    OTHER_ROW,
    ROW,
    assert_different,
    assert_near,
    assert_same,
    family_of,
    rudder_parts,
    run,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
    target_layer,
)
from tests.support.repos import inputs_for, make_base, make_settings, picture
from tests.support.toy import toy_processor
from tests.support.zoo import FAMILIES, Family

Dispatch = Callable[[Family, Any, Path], Any]


def to_cpu(family: Family, model: Any, folder: Path) -> Any:
    """All weights wait on the CPU and are fetched for each module's forward."""
    return cpu_offload(model, execution_device=torch.device("cpu"))


def to_disk(family: Family, model: Any, folder: Path) -> Any:
    """All weights wait on disk."""
    return disk_offload(model, str(folder), execution_device=torch.device("cpu"))


def device_map(family: Family, model: Any) -> dict[str, str]:
    """The target layer and the one before it on disk, everything else on the CPU."""
    places: dict[str, str] = {}

    def place(path: str) -> None:
        if not f"{family.layers}.".startswith(f"{path}." if path else ""):
            places[path] = "disk" if path in (f"{family.layers}.{LAYER - 1}", f"{family.layers}.{LAYER}") else "cpu"
            return
        module = model.get_submodule(path)
        places.update({f"{path}.{name}".lstrip("."): "cpu" for name, _ in module.named_parameters(recurse=False)})
        for name, _ in module.named_children():
            place(f"{path}.{name}".lstrip("."))

    place("")
    return places


def mixed(family: Family, model: Any, folder: Path) -> Any:
    """A device map with two layers on disk."""
    places = device_map(family, model)
    return dispatch_model(model, places, main_device="cpu", offload_dir=str(folder), force_hooks=True)


WAYS: dict[str, Dispatch] = {"cpu": to_cpu, "disk": to_disk, "mixed": mixed}


def is_offloaded(module: torch.nn.Module) -> bool:
    """Whether some weights of a module are elsewhere."""
    return any(parameter.device.type == "meta" for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("first", ["dispatch", "rudder"])
@pytest.mark.parametrize(
    ("name", "dispatch", "way"),
    [
        ("llava", "cpu", "attach"),
        ("llava", "disk", "wrapper"),
        ("llava", "mixed", "wrapper"),
        ("llava", "mixed", "attach"),
        ("instructblip", "mixed", "wrapper"),
        ("llava-plain", "mixed", "attach"),
    ],
)
def test_offloaded_equals_plain(name: str, dispatch: str, way: str, first: str, tmp_path: Path) -> None:
    """An offloaded model is steered like the plain one, whichever of accelerate and RUDDER came first."""
    family = family_of(name)
    plain = family.build()
    inputs = family.inputs(plain, [ROW, OTHER_ROW])
    vanilla = run(plain, inputs)
    with attach(plain, settings()):
        wanted = run(plain, inputs, output_rudder=True)
        added = run(plain, inputs, rudder={"mode": "add"})

    model = family.build()
    if first == "dispatch":
        model = WAYS[dispatch](family, model, tmp_path)
        before = snapshot_of_used(model, inputs)
    steered, remove = steered_by(way, model)
    if first == "rudder":
        WAYS[dispatch](family, model, tmp_path)
    assert is_offloaded(target_layer(family, model))
    output = run(steered, inputs, output_rudder=True)
    assert_near(output, wanted)
    torch.testing.assert_close(output.rudder.gate, wanted.rudder.gate)
    assert_near(run(steered, inputs, rudder={"mode": "add"}), added)
    assert_near(run(steered, inputs, rudder=False), vanilla)
    remove()
    assert not rudder_parts(model)
    if first == "dispatch":
        assert snapshot(model) == before
    assert_near(run(model, inputs), vanilla)
    assert is_offloaded(target_layer(family, model))


def test_device_map_while_loading(tmp_path: Path) -> None:
    """A base loaded with a device map is steered; the wrapper shows the map, and refuses to move as the base does."""
    family = FAMILIES["llava"]
    plain = family.build()
    inputs = family.inputs(plain, [ROW])
    plain.save_pretrained(tmp_path / "model")
    wrapper = RudderForConditionalGeneration.from_base(
        str(tmp_path / "model"),
        settings(),
        device_map=device_map(family, plain),
        offload_folder=str(tmp_path / "offload"),
    )
    assert is_offloaded(target_layer(family, wrapper.model))
    assert wrapper.hf_device_map == wrapper.model.hf_device_map
    with attach(plain, settings()):
        wanted = run(plain, inputs)
    assert_near(run(wrapper, inputs), wanted)
    assert_different(run(wrapper, inputs), run(wrapper, inputs, rudder=False))
    with pytest.raises(RuntimeError, match="offloaded"):
        wrapper.model.to("cpu")
    with pytest.raises(RuntimeError, match="offloaded"):
        wrapper.to("cpu")
    base = wrapper.unwrap()
    assert not rudder_parts(base)
    output = run(base, inputs)
    assert_near(output, run(plain, inputs))
    assert_same(output, run(base, inputs))


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForCausalLM])
def test_big_model_loading_of_settings(auto_class: Any, tmp_path: Path) -> None:
    """Settings take a device map for the base that they name: what does not fit into memory waits on disk."""
    repo = make_settings(tmp_path / "settings", make_base(tmp_path / "base"), layer=-1)
    inputs = inputs_for(toy_processor(), [picture(), picture(1)])
    plain = auto_class.from_pretrained(repo)
    wanted, vanilla = run(plain, inputs), run(plain, inputs, rudder=False)
    assert_different(wanted, vanilla)
    size = sum(parameter.numel() * parameter.element_size() for parameter in plain.parameters())
    spread: dict[str, Any] = {"device_map": "auto", "max_memory": {"cpu": size * 2 // 3}}
    model = auto_class.from_pretrained(repo, **spread, offload_folder=str(tmp_path / "offload"))
    assert set(model.hf_device_map.values()) == {"cpu", "disk"}
    base = model.model if auto_class is AutoModel else model
    assert is_offloaded(base.model.language_model.layers[-1])
    assert_near(run(model, inputs), wanted)
    assert_near(run(model, inputs, rudder=False), vanilla)
