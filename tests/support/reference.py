"""RUDDER once more, slowly and independently: float64, the whole sequence recomputed at every token, no cache.

(Two families go wrong without a cache in stock transformers; the reference runs them with one.)

Nothing here comes from the package. The formulas are typed from the paper, position by position; where layers and
attention updates are is read from the zoo's table, which was filled in by reading the models' code. Stock `generate`
with `use_cache=False` drives a patched float64 copy, so that decoding strategies need no second implementation.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.support.zoo.base import Family, resolve


@dataclass
class Reference:
    """Settings of the slow computation; one number per prompt where they may differ."""

    layer: int
    alpha_max: float | list[float] = 20.0
    k: float | list[float] = 5.0
    c: float | list[float] = 1.0
    g_min: float | list[float] = 0.05
    g_max: float | list[float] = 1.0
    mode: str = "beta"
    pool: str = "mean"
    norm_cap: float | None = None
    steer_first_token: bool = False
    span: str = "prompt"
    image_tokens: tuple[int, ...] = ()
    multiplier: float = 1.0
    use_cache: bool = False
    length: int = 0
    cards: dict[int, list[float]] = field(default_factory=dict)
    gates: dict[tuple[int, int], float] = field(default_factory=dict)
    similarities: dict[tuple[int, int], float] = field(default_factory=dict)

    def of_row(self, name: str, prompt: int) -> float:
        value = getattr(self, name)
        return value[prompt] if isinstance(value, list) else value


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def gate(s: float, k: float, c: float, g_min: float, g_max: float) -> float:
    a, b = softplus(k * s + c), softplus(-k * s + c)
    return min(max(a / (a + b), g_min), g_max)


def card(updates: torch.Tensor, counts: list[bool], pool: str) -> torch.Tensor:
    """Weighted mean of the updates that count, then to unit length."""
    total, weights = torch.zeros(updates.shape[-1], dtype=updates.dtype), 0.0
    for update, counted in zip(updates, counts, strict=True):
        if counted:
            weight = float(update.norm()) if pool == "norm" else 1.0
            total, weights = total + weight * update, weights + weight
    if weights == 0.0 or float(total.norm()) == 0.0:
        return torch.zeros_like(total)
    mean = total / weights
    return mean / mean.norm()


def reference_generate(
    family: Family, model: nn.Module, inputs: dict[str, Any], reference: Reference, **options: Any
) -> Any:
    """Generate with the slow computation; same arguments as `generate`, same kind of output."""
    # Kosmos-2 fills its mask with float32's lowest number whatever its dtype.
    dtype = torch.float32 if family.model_type == "kosmos-2" else torch.float64
    twin: Any = copy.deepcopy(model)
    if dtype is torch.float64:
        twin = twin.double()  # not .to(dtype), which would cast complex buffers to real ones
    twin.set_experts_implementation("eager")  # the fast kernels for experts do not know float64
    inputs = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    layer = resolve(twin, family.layers)[reference.layer]
    _patch(layer, resolve(layer, family.update), inputs, reference)
    options |= {
        "use_cache": reference.use_cache,
        "return_dict_in_generate": True,
        "output_scores": True,
        "do_sample": False,
    }
    if family.loop:
        return _generate_from_ids(twin, resolve(twin, family.loop), inputs, options)
    return twin.generate(**inputs, **options)


def _generate_from_ids(twin: Any, loop: Any, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    """For models that prompt their language model with embeddings, which `generate` cannot recompute.

    The embeddings of the prompt are caught, and put in again whenever the language model embeds the prompt's ids.
    """
    caught: dict[str, Any] = {}
    loop.generate = lambda **arguments: caught.update(arguments)
    twin.generate(**inputs)
    del loop.generate
    table = loop.get_input_embeddings()
    embed = table.forward

    def embed_with_prompt(ids: torch.Tensor) -> torch.Tensor:
        prompt = caught["inputs_embeds"]
        expanded = prompt.repeat_interleave(ids.shape[0] // prompt.shape[0], dim=0)
        return torch.cat([expanded, embed(ids[:, prompt.shape[1] :])], dim=1)

    if caught.get("inputs_embeds") is not None:
        table.forward = embed_with_prompt
        return loop.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)
    return loop.generate(**caught, **options)


def _patch(layer: Any, module: Any, inputs: dict[str, Any], reference: Reference) -> None:
    """Replace the two forwards of a throw-away copy: one notes what enters the layer, one changes the update."""
    entered: list[torch.Tensor] = []
    layer_forward, module_forward = layer.forward, module.forward

    def noting_forward(*args: Any, **kwargs: Any) -> Any:
        entered.append((args[0] if args else kwargs["hidden_states"]).clone())
        return layer_forward(*args, **kwargs)

    def changing_forward(*args: Any, **kwargs: Any) -> Any:
        output = module_forward(*args, **kwargs)
        if isinstance(output, tuple):
            return (_steer(output[0], entered.pop(), inputs, reference), *output[1:])
        return _steer(output, entered.pop(), inputs, reference)

    layer.forward, module.forward = noting_forward, changing_forward


def _steer(updates: torch.Tensor, h: torch.Tensor, inputs: dict[str, Any], reference: Reference) -> torch.Tensor:
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    prompts, prompt_length = ids.shape
    rows, positions, _ = updates.shape
    changed = updates.clone()
    # With a cache, later forwards bring only what is new, and CARD is what the first one made it.
    start = 0 if positions >= prompt_length else reference.length
    reference.length = start + positions
    for row in range(rows):
        prompt = row // (rows // prompts)
        counts = [mask is None or bool(mask[prompt, i]) for i in range(prompt_length)]
        if reference.span != "prompt":
            is_image = [int(token) in reference.image_tokens for token in ids[prompt]]
            counts = [
                counted and image == (reference.span == "image")
                for counted, image in zip(counts, is_image, strict=True)
            ]
        if start == 0:
            v = card(reference.multiplier * updates[row, :prompt_length], counts, reference.pool)
            reference.cards[row] = v.tolist()
        else:
            v = torch.tensor(reference.cards[row], dtype=updates.dtype)
        first = prompt_length - 1 if reference.steer_first_token else prompt_length
        for position in range(max(prompt_length - 1, start), start + positions):
            state = h[row, position - start]
            s = float(state @ v) / max(float(state.norm()), 1e-30)
            g = gate(s, *(reference.of_row(name, prompt) for name in ("k", "c", "g_min", "g_max")))
            strength = reference.of_row("alpha_max", prompt) * (1.0 if reference.mode == "add" else g)
            if reference.norm_cap is not None:
                strength = min(strength, reference.norm_cap)
            token = position - (prompt_length - 1)
            reference.similarities[row, token] = s
            if position >= first:
                reference.gates[row, token] = 1.0 if reference.mode == "add" else g
                changed[row, position - start] += strength * v / reference.multiplier
    return changed
