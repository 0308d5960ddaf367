"""What is compared: the stock model without any hook, and the same model under RUDDER-Beta and RUDDER-Add."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.backbones import Backbone, find_backbone
from ..core.configuration import RudderConfig
from ..core.handle import attach

VANILLA = "vanilla"
VARIANTS = (VANILLA, "beta", "add")


@dataclass
class Subject:
    """A model to measure.

    Attributes:
        name: Under which it is reported.
        model: The stock model; nothing of RUDDER stays on it between runs.
        config: RUDDER's settings; the mode is set by each variant.
        prompt: Makes the inputs of `generate` from a number of prompt tokens.
        description: What a reader of the result has to know about the model.
    """

    name: str
    model: PreTrainedModel
    config: RudderConfig
    prompt: Callable[[int], dict[str, Any]]
    description: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def backbone(self) -> Backbone:
        """The parts of the model that are watched."""
        return find_backbone(self.model)

    @contextmanager
    def variant(self, name: str) -> Iterator[None]:
        """Run the block with the model as the named variant."""
        with nullcontext() if name == VANILLA else attach(self.model, self.config_of(name)):
            yield

    def config_of(self, variant: str) -> RudderConfig:
        """The settings of a steered variant."""
        config = copy.deepcopy(self.config)
        config.mode = variant
        return config

    def answer(self, inputs: dict[str, Any], new_tokens: int) -> Tensor:
        """Generate exactly `new_tokens` tokens greedily, as the paper's speed table does.

        Raises:
            RuntimeError: The answer has another length, so that times per token would be wrong.
        """
        with endless(self.model):
            sequences: Tensor = self.model.generate(
                **inputs, max_new_tokens=new_tokens, do_sample=False, num_beams=1, use_cache=True
            )
        produced = sequences.shape[1]
        if produced not in (new_tokens, prompt_length(inputs) + new_tokens):
            raise RuntimeError(
                f"{self.name} returned {produced} tokens for a prompt of {prompt_length(inputs)} and {new_tokens} new "
                "ones: its answers cannot be timed per token."
            )
        return sequences


def prompt_length(inputs: dict[str, Any]) -> int:
    """Number of prompt positions in the inputs of `generate`."""
    length: int = inputs["input_ids"].shape[1]
    return length


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


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
