"""What the tests of decoding methods share: the four families, each method once, and stock logits for given tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rudder_hf.methods import Method, get
from tests.support.helpers import OTHER_ROW, ROW, settings
from tests.support.zoo import FAMILIES, Family, Row

every_family = pytest.mark.parametrize("family", ["llava", "idefics2", "instructblip", "qwen2_5_vl"])
WIDTH, LAYERS = 32, 4
IDS = ["first", "second"]
DIRECTIONS = torch.randn(LAYERS, WIDTH, generator=torch.Generator().manual_seed(5))
DEVIATIONS = tuple(
    tuple(torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(seed + layer)) for layer in range(LAYERS - 2))
    for seed in (10, 20, 30)
)
DONORS = nn.functional.normalize(torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(6)), dim=-1)

# Settings without which a method cannot run, or with which it visibly acts on a tiny model.
SETTINGS: dict[str, dict[str, Any]] = {
    "dola": {"layers": (0, 1, 2)},
    "pai": {"alpha": 2.0, "gamma": 2.0},
    "vista": {"strength": 0.5},
    "flb": {"gamma": 1.5, "rate": 0.7},
    "vti": {"directions": DIRECTIONS, "alpha": 8.0},
    "rudder-shuffled": {"donors": DONORS},
    "rudder-mean": {"donors": DONORS},
    "contrast": {"contrast": 2.0, "contrast_after": 1},
    "contrast-random": {"contrast": 2.0, "contrast_after": 1},
    "contrast-shuffled": {"contrast": 2.0, "contrast_after": 1, "donors": DEVIATIONS},
    "contrast-negated": {"contrast": 2.0, "contrast_after": 1},
}


def method(name: str, **changes: Any) -> Method:
    """A method with the tests' settings."""
    given = {"config": settings()} if name.startswith("rudder") else {}
    return get(name, **{**given, **SETTINGS.get(name, {}), **changes})


@functools.cache
def built(name: str) -> PreTrainedModel:
    """One model of a family for all tests of a file; none of them changes it."""
    return FAMILIES[name].build()


def batch(family: str, rows: Sequence[Row] = (ROW, OTHER_ROW)) -> dict[str, Any]:
    """A left-padded batch."""
    return FAMILIES[family].inputs(built(family), rows)


def run(tested: Method, model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """Generate four tokens with a method."""
    defaults: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    with tested.applied(model) as generate:
        return generate(**inputs, **{**defaults, **options})


def extended(inputs: dict[str, Any], tokens: Tensor) -> dict[str, Any]:
    """The inputs with answer tokens, (rows, n), after the prompt."""
    longer = dict(inputs)
    longer["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
    longer["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
    if "mm_token_type_ids" in inputs:
        longer["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], dim=1)
    return longer


def stock(model: Any, inputs: dict[str, Any], tokens: Tensor, **options: Any) -> Any:
    """Stock `generate` for one token after prompt and answer: everything is computed anew, in one prefill."""
    single = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    return model.generate(**extended(inputs, tokens), **single, **options)


def stock_logits(model: Any, inputs: dict[str, Any], tokens: Tensor) -> Tensor:
    """Stock logits of the token after prompt and answer, (rows, vocabulary)."""
    return stock(model, inputs, tokens).logits[0]


def text_inputs(inputs: dict[str, Any], special: Sequence[int]) -> dict[str, Any]:
    """The prompt without image, slowly: token by token, row by row."""
    rows = []
    for ids, mask in zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True):
        rows.append([token for token, real in zip(ids, mask, strict=True) if real and token not in special])
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def image_free(family: Family, model: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The module that can read the prompt without image, and that prompt."""
    special = [3, 5, 6] if family.model_type == "qwen2_5_vl" else [3]
    return model.get_submodule(family.loop), text_inputs(inputs, special)


def check_steps(
    output: Any, prompt_length: int, expected: Callable[[Tensor], Tensor], tolerance: float = 2e-4
) -> None:
    """The logits of every step are what `expected` computes from the tokens before it."""
    answer = output.sequences[:, prompt_length:]
    assert len(output.logits) == answer.shape[1] > 2
    for step, logits in enumerate(output.logits):
        torch.testing.assert_close(logits, expected(answer[:, :step]), rtol=tolerance, atol=tolerance)


def slow_beam_search(score: Callable[[Tensor], Tensor], beams: int, steps: int) -> tuple[list[int], float]:
    """Beam search without any cache: `score` gives the logits, (1, vocabulary), after given tokens, (1, n)."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        continued = []
        for total, tokens in running:
            logits = score(torch.tensor([tokens], dtype=torch.long))
            for token, value in enumerate(nn.functional.log_softmax(logits[0], dim=-1).tolist()):
                continued.append((total + value, [*tokens, token]))
        running = sorted(continued, key=lambda beam: -beam[0])[:beams]
    return running[0][1], running[0][0] / steps


@contextmanager
def changed_outputs(modules: Sequence[nn.Module], change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """The tests' own way to change what modules return: bare hooks, at every position."""
    handles = []
    for index, module in enumerate(modules):

        def hook(module: nn.Module, args: Any, output: Any, index: int = index) -> Any:
            return change(index, output)

        handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
