"""What the tests of steered models share: runs that can be compared bit for bit, and what is installed on a model."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from rudder_hf import RudderConfig, RudderForConditionalGeneration, attach
from tests.support.zoo import FAMILIES, Family, Row

LAYER = 2
NEW = 6
"""Tokens that `run` generates."""
ROW = Row(seed=1, words=7)
OTHER_ROW = Row(seed=2, words=11)


def settings(**changes: Any) -> RudderConfig:
    """Settings that visibly steer the tiny models."""
    return RudderConfig(**{"layer": LAYER, "alpha_max": 6.0, "k": 5.0, **changes})


def steered_by(way: str, model: Any) -> tuple[Any, Callable[[], Any]]:
    """A model steered by the wrapper or by `attach`, and what takes RUDDER off again."""
    if way == "wrapper":
        wrapper = RudderForConditionalGeneration.from_base(model, settings())
        return wrapper, wrapper.unwrap
    handle = attach(model, settings())
    return model, handle.remove


def run(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """Generate greedily, with everything that runs are compared by."""
    defaults: dict[str, Any] = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    return model.generate(**inputs, **{**defaults, **options})


def new_tokens(output: Any) -> Tensor:
    """What `run` generated."""
    sequences: Tensor = output.sequences
    return sequences[:, sequences.shape[1] - len(output.logits) :]


def logits(output: Any) -> Tensor:
    """The logits of every generated token, (tokens, rows, vocabulary)."""
    return torch.stack(output.logits)


def assert_same(output: Any, expected: Any) -> None:
    """Two runs are equal bit for bit: tokens, logits, and the trace or its absence."""
    assert torch.equal(output.sequences, expected.sequences)
    assert torch.equal(logits(output), logits(expected))
    trace, wanted = getattr(output, "rudder", None), getattr(expected, "rudder", None)
    assert (trace is None) == (wanted is None)
    if trace is not None:
        for name in ("card", "similarity", "gate", "push"):
            torch.testing.assert_close(getattr(trace, name), getattr(wanted, name), rtol=0, atol=0, equal_nan=True)


def assert_near(output: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Two runs give the same tokens, and logits up to rounding."""
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(logits(output), logits(expected), rtol=tolerance, atol=tolerance)


def assert_different(output: Any, other: Any) -> None:
    """Two runs differ by much more than rounding already at the second token, the first that is always steered."""
    assert (output.logits[1] - other.logits[1]).abs().max() > 0.05


def target_layer(family: Family, model: Any, layer: int = LAYER) -> nn.Module:
    """The decoder layer that `settings` steers, found by the family's own description."""
    return model.get_submodule(family.layers)[layer]  # type: ignore[no-any-return]


def prompt_updates(family: Family, model: PreTrainedModel, inputs: dict[str, Any], layer: int = LAYER) -> Tensor:
    """What self-attention of a layer adds to the residual stream in one plain forward of a stock model.

    This is the tests' own view of Delta_i: a bare hook and one forward without cache.
    """
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    hook = target_layer(family, model, layer).get_submodule(family.update).register_forward_hook(keep)
    try:
        with torch.no_grad():
            model(**inputs, use_cache=False)
    finally:
        hook.remove()
    return seen[0]


def direction(updates: Tensor, mask: Tensor) -> Tensor:
    """Mean of the updates where the mask is 1, as a unit vector, computed in float64."""
    total = (updates.double() * mask.unsqueeze(-1).double()).sum(1)
    return total / total.norm(dim=-1, keepdim=True)


_HOOKS = tuple(name for name in vars(nn.Module()) if "_hooks" in name)
_METHODS = ("forward", "__call__", "generate", "prepare_inputs_for_generation", "to")


def _identity(value: Any) -> Any:
    """Which object a value is: a method by its parts, because Python makes the bound object anew at each access."""
    if isinstance(value, types.MethodType):
        return value.__func__, id(value.__self__)
    # Some models keep a tensor of the last call (Qwen's `rope_deltas`).
    return type(value) if isinstance(value, (Tensor, bool, int, float, str, types.NoneType)) else id(value)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that can be installed on a model: attributes, hooks and methods of each of its modules.

    Two snapshots are equal if nothing was added, removed or exchanged between them.
    """
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        state[f"{path}: class"] = type(module)
        state[f"{path}: attributes"] = {name: _identity(value) for name, value in vars(module).items()}
        state[f"{path}: hooks"] = {name: list(getattr(module, name).items()) for name in _HOOKS}
        state[f"{path}: methods"] = [_identity(getattr(module, name, None)) for name in _METHODS]
    return state


def snapshot_of_used(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """`snapshot` after a first generation, in which transformers installs hooks of its own (output capturing)."""
    run(model, inputs, max_new_tokens=2)
    return snapshot(model)


class PlainLayer(LlamaDecoderLayer):
    """A decoder layer as remote code has it: it takes no keyword arguments that it does not know."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: Any = None,
    ) -> Any:
        return super().forward(
            hidden_states=hidden_states,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
        )


def _make_layers_plain(model: Any) -> None:
    for layer in model.model.language_model.layers:
        layer.__class__ = PlainLayer


PLAIN = replace(FAMILIES["llava"], key="llava-plain", after=_make_layers_plain)
"""A family whose layers the state cannot reach as a keyword argument; transformers' own all let it through."""


def family_of(name: str) -> Family:
    """A family of the zoo, or `PLAIN`."""
    return PLAIN if name == PLAIN.name else FAMILIES[name]


def fresh(family: str | Family = "llava", *rows: Row) -> tuple[Any, dict[str, Any]]:
    """Build a model of a family, and a batch of these rows (by default of `ROW`) for it."""
    family = family_of(family) if isinstance(family, str) else family
    model = family.build()
    return model, family.inputs(model, rows or (ROW,))


@contextmanager
def _hasty_threads() -> Iterator[None]:
    """Let Python change threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def in_threads(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run jobs at the same time; the results in order, or the first failure."""
    start = threading.Barrier(len(jobs))

    def work(job: Callable[[], Any]) -> Any:
        start.wait()
        return job()

    with _hasty_threads(), ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(work, jobs))


class Listener:
    """A streamer that keeps what it gets, and calls back at the n-th put."""

    def __init__(self, at: int = -1, callback: Callable[[], None] | None = None) -> None:
        self.at = at
        self.callback = callback
        self.received: list[list[int]] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.received.append(value.reshape(-1).tolist())
        if len(self.received) == self.at and self.callback is not None:
            self.callback()

    def end(self) -> None:
        self.ended = True


def with_dtype(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Inputs with pixels of another precision."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def rudder_parts(model: nn.Module) -> list[str]:
    """Attributes and hooks on a model that are RUDDER's."""
    found = []
    for path, module in model.named_modules():
        found += [f"{path}.{name}" for name in vars(module) if name.startswith("_rudder") or name == "generate"]
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            found += [f"{path} hook"] if getattr(hook, "__module__", "").startswith("rudder_hf") else []
    return found
