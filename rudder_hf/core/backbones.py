"""Where a vision-language model keeps what RUDDER needs: decoder layers, attention update, generation loop.

One general rule covers every decoder-only model of `AutoModelForImageTextToText`: the text decoder's list of layers,
in each layer the self-attention module, and, in sandwich-norm layers, the norm after it. Families for which adding a
vector to the attention update is not Eq. 5 of the paper are refused by name, with the reason.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from .errors import UnsupportedModelError, warn
from .families import REFUSED, support

# Names of the self-attention module of a decoder layer, in order of preference.
_ATTENTION_NAMES = ("self_attn", "self_attention", "attention", "attn")
# Where a layer has one of these, it stands between self-attention and the residual stream: its output is the update.
_AFTER_ATTENTION_NAMES = ("post_self_attn_layernorm", "attn_sconv", "post_norm1")
# "post_attention_layernorm" norms the attention output where the MLP has norms of its own (Gemma, OLMo 2, EXAONE 4);
# elsewhere (Llama) it is the norm before the MLP.
_MLP_NORM_NAMES = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
# Parts of a model that have layers of their own but write no text.
_NON_TEXT_PARTS = (
    *("vision", "visual", "image", "vq", "qformer", "perceiver", "projector", "connector"),
    *("audio", "speech"),
)
_IMAGE_TOKEN_NAMES = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


@dataclass(frozen=True)
class Backbone:
    """The parts of a model that RUDDER touches."""

    model: nn.Module  # without PEFT's wrapping; its `generate` is what users call
    loop: nn.Module  # its `generate` runs the token loop: `model`, or the language model that it delegates to
    layers: nn.ModuleList  # of the decoder
    layers_path: str  # where they are, from `loop`


@dataclass(frozen=True)
class AttentionUpdate:
    """The module of one decoder layer whose output is added to the residual stream after self-attention."""

    name: str  # attribute path in the layer
    module: nn.Module
    multiplier: float = 1.0  # factor that the layer applies to the output before it adds it (1 in most models)


def without_peft(model: nn.Module) -> nn.Module:
    """Return the model that PEFT or `torch.compile` wraps, or the model itself."""
    model = getattr(model, "_orig_mod", model)
    get_base_model = getattr(model, "get_base_model", None)
    return get_base_model() if callable(get_base_model) and hasattr(model, "peft_config") else model


def model_type(model: nn.Module) -> str:
    """Return the `model_type` of a model's config, for messages."""
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def find_backbone(model: nn.Module, of_part: bool = False) -> Backbone:
    """Locate decoder layers and generation loop of a vision-language model, or of a PEFT model around one.

    With `of_part` it may also be the language model that such a model delegates `generate` to.

    Raises:
        UnsupportedModelError: The model has no decoder-only text generator that RUDDER can steer.
    """
    base = without_peft(model)
    name = model_type(base)
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        raise UnsupportedModelError(
            "RUDDER cannot steer a model with learned prompts (PEFT's prompt tuning and the like): they stand before "
            "the prompt where RUDDER cannot tell them from it. LoRA and other adapters in the weights work."
        )
    if name in REFUSED:
        raise UnsupportedModelError(f"RUDDER cannot steer {name!r} ({type(base).__name__}): {REFUSED[name]}.")
    if not hasattr(base, "generate") or not hasattr(base, "config"):
        raise UnsupportedModelError(
            f"RUDDER steers the `generate` of a Hugging Face vision-language model, got {type(base).__name__}. "
            "Load the model with AutoModelForImageTextToText."
        )
    loop = _generation_loop(base)
    for part in (base, loop):
        if getattr(part.config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"RUDDER cannot steer {name!r} with {type(part).__name__}: its language model is an encoder-decoder. "
                "The image is read by the encoder, so that no decoder self-attention reads image and prompt in a "
                "prefill. Use a checkpoint with a decoder-only language model (for InstructBLIP: Vicuna)."
            )
    path, layers = decoder_layers(loop)
    if support(name) == "unknown" and not _is_text_only(base):
        warn(
            f"RUDDER is not tested on {name!r}: layers were found at {path!r} by a general rule. Compare a few "
            "outputs with rudder=False, and please report what you find."
        )
    elif support(name) == "unknown" and not of_part:
        raise UnsupportedModelError(
            f"{name!r} is a text-only model: RUDDER steers towards what is in an image, and this model reads none. "
            "Choose a vision-language model, one of those that AutoModelForImageTextToText loads."
        )
    return Backbone(model=base, loop=loop, layers=layers, layers_path=path)


def _is_text_only(model: nn.Module) -> bool:
    """Return whether neither the config nor a module of a model is about anything but text."""
    if image_token_ids(model) or hasattr(model.config, "vision_config"):
        return False
    names = {name for path, _ in model.named_modules() for name in path.split(".")}
    return not any(part in name for name in names for part in _NON_TEXT_PARTS)


def _generation_loop(model: nn.Module) -> nn.Module:
    """Return the module that runs the token loop: InstructBLIP and BLIP-2 delegate to their language model."""
    source_class = next((cls for cls in type(model).__mro__ if "generate" in vars(cls)), None)
    if source_class is None or source_class.__name__ == "GenerationMixin":
        return model
    for name in ("language_model", "text_model"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and callable(getattr(type(inner), "generate", None)):
            return inner
    return model


def decoder_layers(loop: Any) -> tuple[str, nn.ModuleList]:
    """Find the decoder's layers, and the path to them.

    Of the lists of modules with self-attention outside of the vision tower, take those with as many layers as the
    config says, and of these the one nearest to the top.
    """
    candidates: list[tuple[str, nn.ModuleList]] = []
    for path, module in loop.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        if any(part in name for name in path.split(".") for part in _NON_TEXT_PARTS):
            continue
        if any(_attention_name(layer) is not None for layer in module):
            candidates.append((path, module))
    expected = getattr(loop.config.get_text_config(decoder=True), "num_hidden_layers", None)
    matching = [candidate for candidate in candidates if len(candidate[1]) == expected] or candidates
    if not matching:
        raise UnsupportedModelError(
            f"RUDDER found no decoder layers with self-attention in {type(loop).__name__} ({model_type(loop)!r}). "
            "It needs a decoder-only language model."
        )
    return min(matching, key=lambda candidate: candidate[0].count("."))


def _attention_name(layer: nn.Module) -> str | None:
    """Return the name of the layer's self-attention module; None if it has none (convolution, state space, ...)."""
    for name in _ATTENTION_NAMES:
        if _is_module(layer, name):
            return name
    # Layers with one interchangeable mixer (Nemotron-H): its class says what it is.
    if _is_module(layer, "mixer") and "Attention" in type(layer.mixer).__name__:
        return "mixer"
    return None


def steerable_layers(backbone: Backbone) -> list[int]:
    """Return the indices of the layers that have self-attention."""
    return [index for index, layer in enumerate(backbone.layers) if _attention_name(layer) is not None]


def resolve_layer(backbone: Backbone, layer: int) -> int:
    """Turn a possibly negative layer index into one from 0 on.

    Raises:
        ValueError: There is no such layer, or it has no self-attention; the message lists those that have it.
    """
    count = len(backbone.layers)
    if not -count <= layer < count:
        raise ValueError(
            f"RUDDER setting `layer` is {layer}, but {model_type(backbone.model)!r} has {count} decoder layers: "
            f"choose from {-count} to {count - 1}."
        )
    index = layer % count
    if _attention_name(backbone.layers[index]) is None:
        usable = ", ".join(map(str, steerable_layers(backbone)))
        raise ValueError(
            f"Layer {layer} of {model_type(backbone.model)!r} is a {type(backbone.layers[index]).__name__} without "
            f"self-attention, so it has no update to read or steer. Layers with self-attention: {usable}."
        )
    return index


def self_attention(layer: nn.Module) -> nn.Module:
    """Return the self-attention module of a decoder layer; raise an UnsupportedModelError if there is none."""
    name = _attention_name(layer)
    if name is None:
        raise UnsupportedModelError(f"{type(layer).__name__} has no self-attention.")
    return getattr(layer, name)  # type: ignore[no-any-return]


def attention_update(layer: nn.Module) -> AttentionUpdate:
    """Find the module whose output is the residual update Delta of Eq. 1.

    In sandwich-norm layers (Gemma 2 and later, GLM-4) the attention output is normed before it is added, so that the
    norm's output is the update. Granite scales the output by a factor when it adds it.
    """
    self_attention(layer)  # Raises where there is none.
    name = str(_attention_name(layer))
    if any(_is_module(layer, norm) for norm in _MLP_NORM_NAMES) and _is_module(layer, "post_attention_layernorm"):
        name = "post_attention_layernorm"
    # Molmo 2 and Chameleon have variants that norm the output of a sublayer instead of its input, under the same name.
    if getattr(layer, "norm_after", False) or type(layer).__name__ == "ChameleonSwinDecoderLayer":
        name = "input_layernorm"
    name = next((after for after in _AFTER_ATTENTION_NAMES if _is_module(layer, after)), name)
    return AttentionUpdate(name, getattr(layer, name), float(getattr(layer, "residual_multiplier", 1.0)))


def _is_module(layer: nn.Module, name: str) -> bool:
    return isinstance(getattr(layer, name, None), nn.Module)


def forwards_keywords(backbone: Backbone, layer: nn.Module) -> bool:
    """Return whether a keyword argument given to the loop's forward is passed down to its decoder layers.

    Judged by signature: every module between the two has to take `**kwargs`.
    """
    modules: list[nn.Module] = [backbone.loop]
    for name in backbone.layers_path.split(".")[:-1]:
        modules.append(getattr(modules[-1], name))
    signatures = [inspect.signature(type(module).forward) for module in (*modules, layer)]
    return all(
        any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        for signature in signatures
    )


def image_token_ids(model: nn.Module) -> tuple[int, ...]:
    """Return the ids of the placeholder tokens for image or video features in the prompt; empty if there are none."""
    config = model.config
    ids = {getattr(config, name, None) for name in _IMAGE_TOKEN_NAMES}
    return tuple(sorted(value for value in ids if isinstance(value, int)))
