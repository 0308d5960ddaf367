"""What every measurement runs: one model, one batch of prompts, answers of exactly the wanted length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.backbones import find_backbone
from ..methods import Generate, Method

VANILLA = "vanilla"


class Bench:
    """One model and one batch of prompts under one decoding.

    Args:
        model: The stock model; nothing stays on it between measurements.
        inputs: Of `generate`.
        new_tokens: Length of every answer.
        beams: 1 is greedy search, as in the paper's speed table.
    """

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Any], new_tokens: int, beams: int = 1) -> None:
        self.model, self.inputs, self.new_tokens, self.beams = model, inputs, new_tokens, beams
        self.decoding = "greedy" if beams == 1 else "beam"
        self.batch_size, self.prompt_tokens = (int(size) for size in inputs["input_ids"].shape)
        self.backbone = find_backbone(model)

    @contextmanager
    def opened(self, method: Method, **options: Any) -> Iterator[Callable[[], Tensor]]:
        """A function that answers the prompts with a method, while the block runs.

        Args:
            method: The method.
            options: Further arguments of `generate`.
        """
        with torch.no_grad(), endless(self.model), method.applied(self.model) as generate:
            yield lambda: self._answer(generate, options)

    def _answer(self, generate: Generate, options: dict[str, Any]) -> Tensor:
        sequences: Tensor = generate(
            **self.inputs,
            max_new_tokens=self.new_tokens,
            do_sample=False,
            num_beams=self.beams,
            use_cache=True,
            sample_ids=[f"prompt {row}" for row in range(self.batch_size)],
            **options,
        )
        # Some models return the answer alone, others the prompt before it.
        if sequences.shape[1] not in (self.new_tokens, self.prompt_tokens + self.new_tokens):
            raise RuntimeError(
                f"`generate` returned {sequences.shape[1]} tokens for a prompt of {self.prompt_tokens} and "
                f"{self.new_tokens} new ones: its answers cannot be timed per token."
            )
        return sequences


@contextmanager
def endless(model: PreTrainedModel) -> Iterator[None]:
    """Forget the end-of-sequence tokens of a model within the block, so that every answer has the same length."""
    configs = [vars(module).get("generation_config") for module in model.modules()]
    saved = [(config, config.eos_token_id) for config in configs if config is not None]
    for config, _ in saved:
        config.eos_token_id = None
    try:
        yield
    finally:
        for config, eos in saved:
            config.eos_token_id = eos
