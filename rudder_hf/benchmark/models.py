"""Models to measure on: random ones of a given shape, or real ones, with RUDDER's settings and prompts for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..runtime.inputs import long_prompt
from ..runtime.models import load_model
from .costs import CostSettings
from .shapes import Shape, build_model, random_prompt


@dataclass(frozen=True)
class BenchmarkSettings(CostSettings):
    """How to measure, and the model and prompts to measure on.

    Attributes:
        rounds: Timed rounds.
        warmup: Rounds before them that do not count.
        batch_size: Rows per call.
        prompt_tokens: Length of the timed prompt, image included.
        dtype: Of the weights; "auto" is the stored one, float32 for a shape.
        device: Where to run.
        layer: RUDDER's layer; None takes the model's own settings, or the paper's relative depth (30 of 32).
    """

    rounds: int = 15
    warmup: int = 2
    batch_size: int = 1
    prompt_tokens: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    layer: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        super().__post_init__()
        self._at_least(batch_size=1, prompt_tokens=1)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model to measure.

    Attributes:
        name: The shape's name, or the model's id or folder.
        model: The stock model.
        config: RUDDER's settings for it.
        prompt: Makes the inputs of `generate` from a number of prompt tokens.
        description: What a reader of the result has to know about the model.
    """

    name: str
    model: PreTrainedModel
    config: RudderConfig
    prompt: Callable[[int], dict[str, Any]]
    description: dict[str, Any]


def shape_model(shape: Shape, settings: BenchmarkSettings) -> BenchmarkModel:
    """A random LLaVA of the given shape."""
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    model = build_model(shape, dtype, settings.seed).to(settings.device)
    prompt = functools.partial(random_prompt, model, batch=settings.batch_size, seed=settings.seed)
    return _described(shape.name, model, None, prompt, settings, {"weights": "random", "shape": asdict(shape)})


def real_model(name: str, settings: BenchmarkSettings) -> BenchmarkModel:
    """A model from the Hub or a folder, or an embedded one: "embedded" or "embedded:NAME"."""
    loaded = load_model(name, settings.dtype, settings.device)
    prompt = functools.partial(long_prompt, loaded.processor, loaded.model, batch=settings.batch_size)
    own = loaded.settings_for("rudder-beta")
    return _described(name, loaded.model, own, prompt, settings, {"weights": name, "revision": loaded.revision})


def _described(
    name: str,
    model: PreTrainedModel,
    config: RudderConfig | None,
    prompt: Callable[[int], dict[str, Any]],
    settings: BenchmarkSettings,
    description: dict[str, Any],
) -> BenchmarkModel:
    backbone = find_backbone(model)
    layers = len(backbone.layers)
    if config is None:
        # The strength does not matter for the speed; it only has to be none of the special cases.
        config = RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
    if settings.layer is not None:
        config.layer = settings.layer
    description |= {
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": layers,
        "rudder": {
            "layer": resolve_layer(backbone, config.layer),
            "alpha_max": config.alpha_max,
            "k": config.k,
            "c": config.c,
        },
    }
    return BenchmarkModel(name, model, config, prompt, description)
