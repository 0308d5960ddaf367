"""A model on two devices, by accelerate's own hooks on devices that are pretended: RUDDER stays with its layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from rudder_hf import attach
from rudder_hf.core.state import GenerationState
from tests.support.helpers import (
    LAYER,
    OTHER_ROW,
    ROW,
    assert_different,
    assert_near,
    family_of,
    run,
    settings,
    steered_by,
)
from tests.support.pretend import FIRST, SECOND, MixedDevicesError, PretendedDevices
from tests.support.zoo import Family

ROWS = [ROW, OTHER_ROW]
# First decoder layer that is on the second device: the steered one, one before it, one after it.
CUTS = {"from the layer on": LAYER, "before the layer": LAYER - 1, "behind the layer": LAYER + 1}


def spread(family: Family, model: Any, cut: int) -> Any:
    """Decoder layers from `cut` on, and what follows them, on the second device; the rest on the first."""
    places: dict[str, str] = {}

    def place(path: str, late: bool) -> bool:
        if path.startswith(f"{family.layers}."):
            places[path] = str(SECOND if int(path.rsplit(".", 1)[1]) >= cut else FIRST)
            return True
        if not f"{family.layers}.".startswith(f"{path}." if path else ""):
            places[path] = str(SECOND if late else FIRST)
            return late
        module = model.get_submodule(path)
        names = [name for name, _ in module.named_parameters(recurse=False)]
        names += [name for name, _ in module.named_children()]
        for name in names:
            late = place(f"{path}.{name}".lstrip("."), late)
        return late

    place("", False)
    return dispatch_model(model, places, main_device=str(FIRST), skip_keys="past_key_values", force_hooks=True)


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


def test_pretended_devices() -> None:
    outside = torch.ones(3)
    with PretendedDevices() as devices:
        one, other = outside.to(FIRST), torch.ones(3, device=SECOND)
        assert (outside.device.type, one.device, other.device) == ("cpu", FIRST, SECOND)
        assert (one + one).device == one[1:].device == one.float().device == torch.zeros_like(one).device == FIRST
        assert one.to(FIRST) is one
        assert one.to(other).device == torch.tensor([1.0], device=other.device).device == SECOND
        assert (one + torch.tensor(2.0)).device == (one * 2).device == FIRST
        for mixed in (
            lambda: one + other,
            lambda: torch.cat([one, outside]),
            lambda: torch.where(one > 0, other, 0.0),
        ):
            with pytest.raises(MixedDevicesError):
                mixed()
        one.copy_(other)
        assert devices.place(one) == FIRST
    assert one.device == other.device == torch.device("cpu")
