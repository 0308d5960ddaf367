"""Where a vision-language model keeps what RUDDER needs: decoder layers, attention update, generation loop.

One general rule covers every decoder-only model: the text decoder's list of layers, in each layer the self-attention
module, and, in sandwich-norm layers, the norm after it. Families for which adding a vector to the attention update is
not Eq. 5 of the paper are refused by name, with the reason.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class AttentionUpdate(NamedTuple):
    """The module of one decoder layer whose output is added to the residual stream after self-attention."""

    name: str  # of the layer's attribute
    module: nn.Module
    multiplier: float = 1.0  # factor that the layer applies to the output before it adds it (not 1 in Granite)


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

    With `of_part` it may also be the language model that such a model delegates `generate` to. Raises an
    UnsupportedModelError with the reason if RUDDER cannot steer the model.
    """
    base: Any = without_peft(model)
    name = model_type(base)
    cannot = f"RUDDER cannot steer {name!r} ({type(base).__name__}): "
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        raise UnsupportedModelError(
            f"{cannot}its learned prompts (PEFT's prompt tuning and the like) stand before the prompt where RUDDER "
            "cannot tell them from it. LoRA and other adapters in the weights work."
        )
    if name in REFUSED:
        raise UnsupportedModelError(f"{cannot}{REFUSED[name]}.")
    if not hasattr(base, "generate") or not hasattr(base, "config"):
        raise UnsupportedModelError(f"{cannot}it has no `generate`. Load it with AutoModelForImageTextToText.")
    loop = _generation_loop(base)
    if any(getattr(part.config, "is_encoder_decoder", False) for part in (base, loop)):
        raise UnsupportedModelError(
            f"{cannot}its language model is an encoder-decoder, in which no decoder self-attention reads the image. "
            "Use a checkpoint with a decoder-only language model (for InstructBLIP: Vicuna)."
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
    return not any(part in path for path, _ in model.named_modules() for part in _NON_TEXT_PARTS)


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
    """Find the decoder's layers, and the path to them: the list of modules with self-attention outside of the vision
    tower that is as long as the config says, and of several such lists the one nearest to the top.
    """
    candidates = [
        (path, module)
        for path, module in loop.named_modules()
        if isinstance(module, nn.ModuleList)
        and not any(part in path for part in _NON_TEXT_PARTS)
        and any(_attention_name(layer) is not None for layer in module)
    ]
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
    # Layers with one interchangeable mixer (Nemotron-H): its class says what it is.
    mixer = ("mixer",) if "Attention" in type(getattr(layer, "mixer", None)).__name__ else ()
    return next((name for name in (*_ATTENTION_NAMES, *mixer) if _is_module(layer, name)), None)


def steerable_layers(backbone: Backbone) -> list[int]:
    """Return the indices of the layers that have self-attention."""
    return [index for index, layer in enumerate(backbone.layers) if _attention_name(layer) is not None]


def resolve_layer(backbone: Backbone, layer: int) -> int:
    """Turn a possibly negative index of a layer with self-attention into one from 0 on; raise a ValueError if none."""
    count, given = len(backbone.layers), f"RUDDER setting `layer` is {layer}, but"
    if not -count <= layer < count:
        name = model_type(backbone.model)
        raise ValueError(f"{given} {name!r} has {count} decoder layers: choose from {-count} to {count - 1}.")
    found = backbone.layers[layer]
    if _attention_name(found) is None:
        usable = ", ".join(map(str, steerable_layers(backbone)))
        raise ValueError(
            f"{given} this is a {type(found).__name__} without self-attention: no update to read or steer. Choose "
            f"from {usable}."
        )
    return layer % count


def self_attention(layer: nn.Module) -> nn.Module:
    """Return the self-attention module of a decoder layer; raise an UnsupportedModelError if there is none."""
    name = _attention_name(layer)
    if name is None:
        raise UnsupportedModelError(f"{type(layer).__name__} has no self-attention.")
    return getattr(layer, name)  # type: ignore[no-any-return]


def attention_update(layer: nn.Module) -> AttentionUpdate:
    """Find the module whose output is the residual update Delta of Eq. 1: self-attention, or the norm after it.

    Sandwich-norm layers (Gemma 2 and later, GLM-4) norm the attention output before they add it.
    """
    self_attention(layer)  # Raises where there is none.
    name = str(_attention_name(layer))
    if any(_is_module(layer, norm) for norm in _MLP_NORM_NAMES) and _is_module(layer, "post_attention_layernorm"):
        name = "post_attention_layernorm"
    # Molmo 2 and Chameleon have variants that norm the output of a sublayer instead of its input, under the same name.
    if getattr(layer, "norm_after", False) or type(layer).__name__ == "ChameleonSwinDecoderLayer":
        name = "input_layernorm"
    name = next((after for after in _AFTER_ATTENTION_NAMES if _is_module(layer, after)), name)
    return AttentionUpdate(name, layer.get_submodule(name), float(getattr(layer, "residual_multiplier", 1.0)))


def _is_module(layer: nn.Module, name: str) -> bool:
    return isinstance(getattr(layer, name, None), nn.Module)


def forwards_keywords(backbone: Backbone, layer: nn.Module) -> bool:
    """Return whether the loop's forward passes keyword arguments down: whether each module to the layer takes any."""
    part, modules = backbone.loop, [backbone.loop, layer]
    for name in backbone.layers_path.split(".")[:-1]:
        part = getattr(part, name)
        modules.append(part)
    parameters = [inspect.signature(type(module).forward).parameters.values() for module in modules]
    return all(any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found) for found in parameters)


def image_token_ids(model: nn.Module) -> tuple[int, ...]:
    """Return the ids of the placeholder tokens for image or video features in the prompt; empty if there are none."""
    ids = {getattr(model.config, name, None) for name in _IMAGE_TOKEN_NAMES}
    return tuple(sorted(value for value in ids if isinstance(value, int)))
