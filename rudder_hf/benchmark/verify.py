"""Does RUDDER do on this machine and this model what it does in the tests? A few short generations that tell.

Each check compares two ways to the same answer, and the stock model is compared with itself in the same way: a model
or a device whose own answers depend on compiling or chance is not blamed on RUDDER, and it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import CompileConfig, PreTrainedModel

from ..core.attach import attach
from ..core.backbones import attention_update, find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..runtime.environment import hardware, versions
from .costs import endless

# Largest difference of two logits that is rounding, relative to the largest logit.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# As much more than the stock model differs from itself, a steered one may.
_SLACK = 3.0
# Share of the hidden state's length that is pushed where there are no settings for a model.
_VISIBLE = 0.1


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str  # what has to hold
    passed: bool | None  # None where nothing can fail, or nothing could be compared
    found: str  # the largest difference, or why nothing was compared


class Verifier:
    """The checks of one model.

    Args:
        model: The stock model, on its device.
        inputs: Of `generate`, for one prompt with an image, such as those of `encode`.
        config: RUDDER's settings; None takes a layer near the end, at a strength that is seen on this model.
        new_tokens: Length of the answers.
    """

    def __init__(
        self, model: PreTrainedModel, inputs: dict[str, Any], config: RudderConfig | None = None, new_tokens: int = 16
    ) -> None:
        self.model, self.inputs, self.new_tokens = model, inputs, new_tokens
        self.tolerance = TOLERANCES.get(model.dtype, 1e-2)
        self.config = visible_settings(self) if config is None else config

    def answer(self, **options: Any) -> Any:
        """Greedy search for exactly `new_tokens` tokens, with logits."""
        defaults = {"max_new_tokens": self.new_tokens, "do_sample": False, "num_beams": 1}
        with torch.no_grad(), endless(self.model):
            return self.model.generate(  # type: ignore[operator]
                **self.inputs, **{**defaults, **options}, return_dict_in_generate=True, output_logits=True
            )

    def run(self, compiled: bool = True) -> list[Check]:
        """All checks. A check that raises has failed, and says with what.

        Args:
            compiled: Whether to compile, which takes the longest.
        """
        checks: dict[str, Callable[[], tuple[bool | None, str]]] = {
            "the hook adds what it says": self.check_hook,
            "switched off is the stock model": self.check_off,
        }
        if compiled:
            checks["compiled equals eager"] = self.check_compiled
        found = []
        for name, check in checks.items():
            try:
                found.append(Check(name, *check()))
            except Exception as error:
                found.append(Check(name, False, f"it raised an error: {_line(error)}"))
        return found

    def check_hook(self) -> tuple[bool, str]:
        """Check that each step adds alpha_max * gate * CARD, as the trace has it, to the attention output."""
        index = resolve_layer(find_backbone(self.model), self.config.layer)
        update = attention_update(find_backbone(self.model).layers[index])
        seen: dict[str, list[Tensor]] = {"before": [], "after": []}

        def keep(when: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                seen[when].append((output[0] if isinstance(output, tuple) else output)[:, -1].float().cpu())

            return hook

        with ExitStack() as stack:
            stack.enter_context(attach(self.model, self.config))
            for when in seen:
                handle = update.module.register_forward_hook(keep(when), prepend=when == "before")
                stack.callback(handle.remove)
            output = self.answer(output_rudder=True)
        first = 0 if self.config.steer_first_token else 1
        before, after = (torch.stack(seen[when])[first:, 0] for when in ("before", "after"))
        card, gate = output.rudder.card[0].float().cpu(), output.rudder.gate[0, first:].float().cpu()
        wanted = self.config.alpha_max * gate[:, None] * card / update.multiplier
        # A sum in the model's dtype is off by half a unit in the last place of its largest entry.
        rounding = float(torch.finfo(self.model.dtype).eps * after.abs().max())
        off, pushed = float((after - before - wanted).abs().max()), float((after - before).abs().max())
        steps = int(((after - before).abs().amax(-1) > 0).sum())
        return (
            len(before) == len(gate) and steps == len(gate) and off <= rounding < pushed,
            f"added in {steps} of {len(gate)} steps, up to {pushed:.3g}; off by {off:.2g} (rounding: {rounding:.2g})",
        )

    def check_off(self) -> tuple[bool, str]:
        """With `rudder=False`, and after removing RUDDER, every logit is the stock model's."""
        stock, again = self.answer(), self.answer()
        with attach(self.model, self.config):
            self.answer()
            off = self.answer(rudder=False)
        removed = self.answer()
        own = _difference(stock, again)
        found = max(_difference(stock, off), _difference(stock, removed))
        words = "bit for bit the same" if found.largest == 0 else found.text
        if own.largest:
            words += f"; on this device the stock model does not repeat itself either ({own.text})"
        return found.largest <= _SLACK * own.largest, words

    def check_compiled(self) -> tuple[bool | None, str]:
        """Decoding steps compiled with a static cache give what they give uncompiled."""
        compile_config = CompileConfig()
        if self.model.device.type == "cpu":
            # transformers compiles on accelerators only, and a C++ compiler may be missing here.
            compile_config = CompileConfig(backend="aot_eager", mode=None)  # type: ignore[arg-type]
            compile_config._compile_all_devices = True

        def differ() -> _Difference:
            static: dict[str, Any] = {"cache_implementation": "static"}
            torch._dynamo.reset()
            eager = self.answer(**static, disable_compile=True)
            # Twice: the second runs what the first compiled, on what it left behind.
            each = [self.answer(**static, compile_config=compile_config) for _ in range(2)]
            torch._dynamo.reset()
            return max(_difference(eager, output) for output in each)

        try:
            stock = differ()
        except Exception as error:
            return None, f"the stock model cannot do it: {_line(error)}"
        with attach(self.model, self.config):
            steered = differ()
        words = f"{steered.text}; the stock model: {stock.text} (backend {compile_config.backend})"
        if stock.largest > self.tolerance:
            return None, f"{words}, more than rounding, so that this says nothing about RUDDER"
        return steered.largest <= max(self.tolerance, _SLACK * stock.largest), words


class _Difference(NamedTuple):
    """How far two answers to one prompt agree, up to where their tokens part."""

    largest: float  # difference of two logits, relative to the largest logit
    text: str


def _difference(one: Any, other: Any) -> _Difference:
    """Compare two answers as far as their tokens agree."""
    logits = [torch.stack(answer.logits)[:, 0].float() for answer in (one, other)]
    tokens = [answer.sequences[0, -len(answer.logits) :] for answer in (one, other)]
    apart = (tokens[0] != tokens[1]).nonzero().flatten().tolist()
    # The logits that a token is chosen from are comparable as long as everything before it is the same.
    end = apart[0] + 1 if apart else len(tokens[0])
    scale = logits[0][logits[0].isfinite()].abs().max().clamp_min(1e-9)
    both = [values[:end].nan_to_num(0.0, posinf=0.0, neginf=0.0) for values in logits]
    same = torch.equal(logits[0][:end].isfinite(), logits[1][:end].isfinite())
    largest = float((both[0] - both[1]).abs().max() / scale) if same else float("inf")
    shared = f"same tokens up to number {end}" if apart else "same tokens"
    return _Difference(largest, f"{shared}, logits differ by {largest:.2g} of the largest")


def visible_settings(verifier: Verifier) -> RudderConfig:
    """A layer near the end, and a strength of a tenth of its hidden state: whatever the model, it is seen.

    Raises:
        ValueError: No layer of the model can be steered.
    """
    layers = len(find_backbone(verifier.model).layers)
    for layer in range(layers * 30 // 32, -1, -1):
        config = RudderConfig(layer=layer, alpha_max=1.0)
        try:
            handle = attach(verifier.model, config)
        except ValueError:
            continue  # a layer without self-attention
        with handle:
            trace = verifier.answer(output_rudder=True).rudder
        # push = alpha_max * gate / ||h||, and alpha_max is 1.
        config.alpha_max = _VISIBLE * float((trace.gate[:, 1:] / trace.push[:, 1:]).median())
        return config
    raise ValueError(f"No layer of {type(verifier.model).__name__} can be steered.")


def report(name: str, verifier: Verifier, checks: Sequence[Check]) -> str:
    """What the checks found, in Markdown, to paste into a bug report."""
    words = {True: "passed", False: "**FAILED**", None: "for information"}
    model, config = verifier.model, verifier.config
    machine = hardware()
    return "\n".join(
        [
            f"### rudder verify: {name}",
            "",
            f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {model.device}, layer "
            f"{config.layer}, alpha_max {config.alpha_max:.3g}, k {config.k:g}, mode {config.mode}, attention "
            f"{model.config.get_text_config()._attn_implementation}",
            "",
            "| check | result | found |",
            "|---|---|---|",
            *(f"| {each.name} | {words[each.passed]} | {each.found} |" for each in checks),
            "",
            f"{', '.join(machine['accelerators']) or 'no accelerator'}; {machine['cpu']}, {machine['system']}; "
            + ", ".join(f"{package} {version}" for package, version in versions().items() if version),
        ]
    )


def _line(error: Exception) -> str:
    """The kind and the first line of an error, as fits a table."""
    line = next(iter(str(error).strip().splitlines()), "").replace("|", "/")[:200]
    return f"{type(error).__name__}: {line}"
