"""`rudder verify`: it passes on every family, and fails when something is broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rudder_hf.benchmark.verify import Check, Verifier
from rudder_hf.core.hooks import _LayerHooks
from rudder_hf.core.state import GenerationState
from rudder_hf.core.steering import steer_step
from tests.core.test_exactness import STEERED
from tests.support.command import rudder
from tests.support.helpers import rudder_parts, settings
from tests.support.zoo import FAMILIES, Row

NEW_TOKENS = 4


def verifier(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Verifier:
    """The checks of a tiny model, with settings for it or, without changes, with those that `verify` finds."""
    family = FAMILIES[name]
    model: Any = family.build().to(dtype)
    inputs = family.inputs(model, [Row(1, 4)])
    inputs = {key: value.to(dtype) if is_pixels(value) else value for key, value in inputs.items()}
    return Verifier(model, inputs, settings(**changes) if changes else None, NEW_TOKENS)


def is_pixels(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def results(checks: list[Check]) -> dict[str, bool | None]:
    return {check.name: check.passed for check in checks}


@pytest.mark.parametrize("name", STEERED)
def test_every_family_passes(name: str) -> None:
    with torch.random.fork_rng():
        checking = verifier(name)
        checks = checking.run(compiled=False)
    assert list(results(checks).values()) == [True, True], checks
    assert not rudder_parts(checking.model)


@pytest.mark.parametrize(
    "changes",
    [{"steer_first_token": True}, {"mode": "add"}, {"norm_cap": 1.0, "pool": "norm"}, torch.bfloat16, torch.float16],
    ids=["first token", "add", "cap", "bfloat16", "float16"],
)
def test_any_settings_and_half_precision_pass(changes: Any) -> None:
    checking = verifier("llava", **changes) if isinstance(changes, dict) else verifier("llava", changes)
    checks = checking.run(compiled=False)
    assert set(results(checks).values()) == {True}, checks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_compiled(name: str) -> None:
    checks = verifier(name).run()
    assert list(results(checks).values()) == [True] * 3, checks


# What is broken is found, by the check that is there for it


def nothing_is_added(patch: pytest.MonkeyPatch) -> None:
    steer = GenerationState.steer

    def pass_by(self: Any, h: Any, update: Any) -> Any:
        steer(self, h, update)
        return update

    patch.setattr(GenerationState, "steer", pass_by)


def no_hook_is_called(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_LayerHooks, "after_update", lambda *_: None)


def more_is_added(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rudder_hf.core.state.steer_step", lambda h, u, c: u + 1.01 * (steer_step(h, u, c) - u))


def something_is_left(patch: pytest.MonkeyPatch) -> None:
    after = _LayerHooks.after_update

    def always(self: Any, module: Any, args: Any, output: Any) -> Any:
        steered = after(self, module, args, output)
        return (output[0] * (1 + 1e-6), *output[1:]) if steered is None else steered

    patch.setattr(_LayerHooks, "after_update", always)


def graphs_leave_the_push_out(patch: pytest.MonkeyPatch) -> None:
    def eager_only(h: Any, update: Any, constants: Any) -> Any:
        return update if torch.compiler.is_compiling() else steer_step(h, update, constants)

    patch.setattr("rudder_hf.core.state.steer_step", eager_only)


@pytest.mark.parametrize(
    ("breaking", "failed", "found"),
    [
        (nothing_is_added, "the hook adds what it says", ""),
        (no_hook_is_called, "the hook adds what it says", "hook did not run"),
        (more_is_added, "the hook adds what it says", ""),
        (something_is_left, "switched off is the stock model", ""),
        (graphs_leave_the_push_out, "compiled equals eager", ""),
    ],
)
def test_what_is_broken_is_found(breaking: Any, failed: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checking = verifier("llava", alpha_max=6.0)
    breaking(monkeypatch)
    checks = [check for check in checking.run(compiled=failed == "compiled equals eager") if check.passed is False]
    assert checks[0].name == failed
    assert found in checks[0].found
    # A hook that never runs leaves other checks nothing to compare.
    assert len(checks) == 1 or breaking is no_hook_is_called


def test_what_the_stock_model_cannot_do_is_not_blamed_on_rudder(monkeypatch: pytest.MonkeyPatch) -> None:
    checking, answer = verifier("llava", alpha_max=6.0), Verifier.answer

    def other_when_compiled(self: Verifier, **options: Any) -> Any:
        output = answer(self, **{name: value for name, value in options.items() if name == "output_rudder"})
        output.logits = [step * (2 if "compile_config" in options else 1) for step in output.logits]
        return output

    monkeypatch.setattr(Verifier, "answer", other_when_compiled)
    passed, found = checking.check_compiled()
    assert (passed, found.split(", ")[-1]) == (None, "so that this says nothing about RUDDER")
    monkeypatch.setitem(checking.inputs, "input_ids", None)
    passed, found = checking.check_compiled()
    assert passed is None
    assert found.startswith("the stock model cannot do it: ")


# The command


@pytest.mark.parametrize("name", ["llava", pytest.param("idefics2", marks=pytest.mark.slow)])
def test_command_on_the_embedded_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", f"embedded:{name}", "--new-tokens", 3, "--no-compile")
    result = rudder("verify", *options)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"### rudder verify: embedded:{name}"
    assert [line.split(" | ")[1] for line in lines if line.startswith("| ")][1:] == ["passed"] * 2
    assert f"torch {torch.__version__}" in lines[-2]
    monkeypatch.setattr("rudder_hf.core.state.steer_step", lambda h, update, constants: update)
    result = rudder("verify", *options)
    assert result.exit_code == 1
    assert "| the hook adds what it says | **FAILED** |" in result.stdout
