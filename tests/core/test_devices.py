"""Bases that are spread over devices, over CPU and disk, or over processes: steered like one on a single device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

from rudder_hf import attach
from rudder_hf.core.state import GenerationState
from tests.support.command import started
from tests.support.helpers import (
    LAYER,
    OTHER_ROW,
    ROW,
    assert_different,
    assert_near,
    family_of,
    logits,
    rudder_parts,
    run,
    settings,
    snapshot,
    snapshot_of_used,
    steered_by,
    target_layer,
)
from tests.support.pretend import FIRST, SECOND, MixedDevicesError, PretendedDevices
from tests.support.repos import inputs_for, make_base, make_settings, picture
from tests.support.serving import free_port
from tests.support.toy import toy_processor
from tests.support.zoo import Family

# Bases that accelerate has spread over devices: layers on the CPU and on disk are steered like any other


Dispatch = Callable[[Family, Any, Path], Any]


def placed(family: Family, model: Any, of_layer: Callable[[int], str], before: str, behind: str) -> dict[str, str]:
    """A device map: decoder layers where `of_layer` says, what is before and behind them on these devices."""
    places: dict[str, str] = {}

    def place(path: str, late: bool) -> bool:
        if path.startswith(f"{family.layers}."):
            places[path] = of_layer(int(path.rsplit(".", 1)[1]))
            return True
        if not f"{family.layers}.".startswith(f"{path}." if path else ""):
            places[path] = behind if late else before
            return late
        module = model.get_submodule(path)
        names = [name for name, _ in module.named_parameters(recurse=False)]
        names += [name for name, _ in module.named_children()]
        for name in names:
            late = place(f"{path}.{name}".lstrip("."), late)
        return late

    place("", False)
    return places


def device_map(family: Family, model: Any) -> dict[str, str]:
    """The target layer and the one before it on disk, everything else on the CPU."""
    return placed(family, model, lambda layer: "disk" if layer in (LAYER - 1, LAYER) else "cpu", "cpu", "cpu")


CPU = torch.device("cpu")
WAYS: dict[str, Dispatch] = {
    "cpu": lambda family, model, folder: cpu_offload(model, execution_device=CPU),
    "disk": lambda family, model, folder: disk_offload(model, str(folder), execution_device=CPU),
    "mixed": lambda family, model, folder: dispatch_model(
        model, device_map(family, model), main_device="cpu", offload_dir=str(folder), force_hooks=True
    ),
}


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
    # It refuses to move as the base does.
    with pytest.raises(RuntimeError, match="offloaded"):
        model.to("cpu")


# A model on two devices, by accelerate's own hooks on devices that are pretended: RUDDER stays with its layer


ROWS = [ROW, OTHER_ROW]
# First decoder layer that is on the second device: the steered one, one before it, one after it.
CUTS = {"from the layer on": LAYER, "before the layer": LAYER - 1, "behind the layer": LAYER + 1}


def spread(family: Family, model: Any, cut: int) -> Any:
    """Decoder layers from `cut` on, and what follows them, on the second device; the rest on the first."""
    first, second = str(FIRST), str(SECOND)
    places = placed(family, model, lambda layer: second if layer >= cut else first, first, second)
    return dispatch_model(model, places, main_device=first, skip_keys="past_key_values", force_hooks=True)


def on_first(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(FIRST) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    ("name", "way", "changes", "beams"),
    [
        ("llava", "wrapper", {}, 1),
        ("llava", "attach", {"span": "text", "steer_first_token": True}, 1),
        ("llava-plain", "attach", {"pool": "norm"}, 2),
        ("llava", "attach", {"mode": "add"}, 1),
    ],
)
def test_two_devices_equal_one(name: str, way: str, changes: dict[str, Any], beams: int, cut: int) -> None:
    """No operator of RUDDER mixes devices, its vectors are on the layer's device, and the answer is the same."""
    family = family_of(name)
    plain = family.build()
    inputs = family.inputs(plain, ROWS)
    vanilla = run(plain, inputs, num_beams=beams)
    with attach(plain, settings()):
        wanted = run(plain, inputs, output_rudder=True, rudder=changes, num_beams=beams)
    assert_different(wanted, vanilla)

    model = family.build()
    with PretendedDevices() as devices:
        spread(family, model, cut)
        steered, remove = steered_by(way, model)
        output = run(steered, on_first(inputs), output_rudder=True, rudder=changes, num_beams=beams)
        unsteered = run(steered, on_first(inputs), rudder=False, num_beams=beams)
        remove()
        placed = {devices.place(getattr(output.rudder, part)) for part in ("card", "similarity", "gate", "push")}
        layers = model.get_submodule(family.layers)
        at_layer = devices.place(next(layers[LAYER].parameters()))
        used = {devices.place(parameter) for parameter in model.parameters()}
    assert at_layer == (SECOND if cut <= LAYER else FIRST)
    assert used == {FIRST, SECOND}
    assert placed == {at_layer}
    assert_near(output, wanted)
    torch.testing.assert_close(output.rudder.gate, wanted.rudder.gate)
    assert_near(unsteered, vanilla)


def test_the_simulation_notices_a_missing_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the one line that moves the layer's input, the first case above fails."""
    family = family_of("llava")
    model = family.build()
    inputs = family.inputs(model, ROWS)

    def steer_in_place(self: Any, h: Any, update: Any) -> Any:
        self.fired = True
        return self._steer(h, update)

    with PretendedDevices():
        spread(family, model, LAYER)
        with attach(model, settings()):
            run(model, on_first(inputs))
            monkeypatch.setattr(GenerationState, "steer", steer_in_place)
            with pytest.raises(MixedDevicesError):
                run(model, on_first(inputs))


# A model whose weights two processes share (tensor parallel, FSDP2): both steer it as one process does


PROCESSES = 2


def in_processes(way: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    """What each of the processes generated."""
    shared = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [
        started(
            "-m", "tests.support.parallel", way, folder, module=False, **shared, RANK=str(rank), LOCAL_RANK=str(rank)
        )
        for rank in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(said)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(PROCESSES)]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("way", ["tp", "fsdp"])
def test_two_processes_equal_one(way: str, tmp_path: Path) -> None:
    family = family_of("llava")
    model = family.build()
    model.save_pretrained(tmp_path / "model")
    inputs = family.inputs(model, [ROW, OTHER_ROW])
    vanilla = run(model, inputs)
    with attach(model, settings()):
        wanted = run(model, inputs, output_rudder=True)
    assert_different(wanted, vanilla)
    for found in in_processes(way, tmp_path):
        assert found["sharded"] > 0
        assert torch.equal(found["sequences"], wanted.sequences)
        torch.testing.assert_close(found["logits"], logits(wanted), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(found["card"], wanted.rudder.card)
        torch.testing.assert_close(found["gate"], wanted.rudder.gate.nan_to_num())
        torch.testing.assert_close(found["vanilla"], logits(vanilla), rtol=2e-5, atol=2e-5)
        assert torch.equal(found["off"], found["vanilla"])
