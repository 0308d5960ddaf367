"""The model that a benchmark measures, with RUDDER's settings and a prompt for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..metrics.errors import check_least
from ..runtime.answers import long_prompt
from ..runtime.models import load_model
from .costs import CostSettings


@dataclass(frozen=True)
class BenchmarkSettings(CostSettings):
    """How to measure, and the model and prompts to measure on."""

    rounds: int = 15
    warmup: int = 2
    batch_size: int = 1
    prompt_tokens: int = 64  # length of the timed prompt, image included
    dtype: str = "auto"  # of the weights; "auto" is the stored one
    device: str = "cpu"
    layer: int | None = None  # RUDDER's; None takes the model's own settings, or the paper's relative depth (30 of 32)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, batch_size=1, prompt_tokens=1)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model to measure."""

    name: str
    model: PreTrainedModel  # the stock model
    config: RudderConfig  # RUDDER's settings for it
    inputs: dict[str, Any]  # of `generate`
    description: dict[str, Any]  # what a reader of the result has to know about the model

    @classmethod
    def of(
        cls,
        name: str,
        model: PreTrainedModel,
        inputs: dict[str, Any],
        settings: BenchmarkSettings,
        config: RudderConfig | None = None,
        **description: Any,
    ) -> BenchmarkModel:
        """Return a model to measure, with settings for its depth if there are none.

        Raises:
            ValueError: There is no such layer.
        """
        backbone = find_backbone(model)
        layers = len(backbone.layers)
        if config is None:
            # The strength does not matter for the speed; it only has to be none of the special cases.
            config = RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
        if settings.layer is not None:
            config.layer = settings.layer
        used = {name: getattr(config, name) for name in ("alpha_max", "k", "c")}
        description |= {
            "class": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": layers,
            "rudder": {"layer": resolve_layer(backbone, config.layer), **used},
        }
        return cls(name, model, config, inputs, description)


def benchmark_model(name: str | None, settings: BenchmarkSettings) -> BenchmarkModel:
    """Load the model of an id or a folder, or an embedded one, with a prompt as long as the settings say.

    Raises:
        ValueError: There is no such model or layer.
    """
    loaded = load_model(name, settings.dtype, settings.device)
    inputs = long_prompt(loaded.processor, loaded.model, settings.prompt_tokens, settings.batch_size)
    config, source = loaded.settings_for("rudder-beta"), {"weights": loaded.name, "revision": loaded.revision}
    return BenchmarkModel.of(loaded.name, loaded.model, inputs, settings, config, **source)
