"""Models to measure on, with RUDDER's settings and prompts for them: real ones, or random ones that are built here.

Random ones are LLaVAs of a given shape, so that nothing is downloaded. RUDDER acts in one layer, whatever the number
of layers. `wide` has the layers of LLaVA-1.5-7B but only two of them, so that its ratio is a lower bound for the
32-layer model; `deep` has as many layers as that model but narrow ones, so that launching operators is all that takes
time: the hard case for anything that adds operators.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..metrics.errors import check_least
from ..runtime.answers import long_prompt
from ..runtime.models import load_model
from .costs import CostSettings

PAD, BOS, EOS, IMAGE = 0, 1, 2, 3
FIRST_WORD = 4
IMAGE_SIZE, PATCH_SIZE = 32, 8
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2


@dataclass(frozen=True)
class Shape:
    """Size of a random LLaVA's decoder.

    Attributes:
        name: What users type.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward layers.
        heads: Number of attention heads.
        layers: Number of decoder layers.
        vocabulary: Number of tokens. Small, so that the language-model head does not hide the cost of the layers.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    heads: int
    layers: int
    vocabulary: int = 1024


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("wide", hidden_size=4096, intermediate_size=11008, heads=32, layers=2),
        Shape("deep", hidden_size=128, intermediate_size=344, heads=4, layers=32),
        Shape("tiny", hidden_size=32, intermediate_size=64, heads=4, layers=4, vocabulary=128),
    )
}


def build_model(
    shape: Shape, dtype: torch.dtype = torch.float32, seed: int = 0, initializer_range: float = 0.02
) -> PreTrainedModel:
    """A LLaVA of the given shape with a small CLIP tower; its answers never end by themselves.

    Args:
        shape: Size of its decoder.
        dtype: Type of its weights.
        seed: Of its weights. The global random generator is left as it was.
        initializer_range: Standard deviation of the weights.
    """
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        initializer_range=initializer_range,
    )
    text = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=4096,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=initializer_range,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=IMAGE_TOKENS
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config).to(dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def random_prompt(model: PreTrainedModel, tokens: int, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    """Inputs of `generate` with one random image and random words in each row, `tokens` positions in all.

    Raises:
        ValueError: There is no room for the image in so few tokens.
    """
    words = tokens - 1 - IMAGE_TOKENS
    if words < 1:
        raise ValueError(f"A prompt of {tokens} tokens has no room for the image: {IMAGE_TOKENS + 2} are the least.")
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.config.get_text_config().vocab_size
    text = torch.randint(FIRST_WORD, vocabulary, (batch, words), generator=generator)
    beginning = torch.tensor([[BOS] + [IMAGE] * IMAGE_TOKENS]).expand(batch, -1)
    input_ids = torch.cat([beginning, text], dim=1)
    pixels = torch.randn(batch, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    return {
        "input_ids": input_ids.to(model.device),
        "attention_mask": torch.ones_like(input_ids).to(model.device),
        "pixel_values": pixels.to(model.device, model.dtype),
    }


@dataclass(frozen=True)
class BenchmarkSettings(CostSettings):
    """How to measure, and the model and prompts to measure on.

    Attributes:
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
        super().__post_init__()
        check_least(self, batch_size=1, prompt_tokens=1)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model to measure.

    Attributes:
        name: The shape's name, or the model's id or folder.
        model: The stock model.
        config: RUDDER's settings for it.
        inputs: Of `generate`, as long as the settings say.
        description: What a reader of the result has to know about the model.
    """

    name: str
    model: PreTrainedModel
    config: RudderConfig
    inputs: dict[str, Any]
    description: dict[str, Any]


def benchmark_model(what: Shape | str, settings: BenchmarkSettings) -> BenchmarkModel:
    """A random LLaVA of a shape, or the model of an id, a folder, or "embedded" or "embedded:NAME".

    Raises:
        ValueError: There is no such model or layer, or no room for the image in so few prompt tokens.
    """
    config: RudderConfig | None = None
    described: dict[str, Any]
    if isinstance(what, Shape):
        dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
        model = build_model(what, dtype, settings.seed).to(settings.device)
        inputs = random_prompt(model, settings.prompt_tokens, settings.batch_size, settings.seed)
        name, described = what.name, {"weights": "random", "shape": asdict(what)}
    else:
        loaded = load_model(what, settings.dtype, settings.device)
        name, model, config = what, loaded.model, loaded.settings_for("rudder-beta")
        inputs = long_prompt(loaded.processor, model, settings.prompt_tokens, settings.batch_size)
        described = {"weights": what, "revision": loaded.revision}
    backbone = find_backbone(model)
    layers = len(backbone.layers)
    if config is None:
        # The strength does not matter for the speed; it only has to be none of the special cases.
        config = RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
    if settings.layer is not None:
        config.layer = settings.layer
    described |= {
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": layers,
        "rudder": {
            "layer": resolve_layer(backbone, config.layer),
            **{name: getattr(config, name) for name in ("alpha_max", "k", "c")},
        },
    }
    return BenchmarkModel(name, model, config, inputs, described)
