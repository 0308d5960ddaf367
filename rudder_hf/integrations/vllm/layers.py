"""Where the operator meets the model: the target layer of a model that vLLM has built.

Models of vLLM's transformers back end keep the layers of transformers, whose input is h. vLLM's own classes carry a
pair (output so far, residual) from layer to layer, which `input_layernorm` adds up to h; that is known for the classes
in `NATIVE` and for no other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.backbones import Backbone, attention_update, decoder_layers, resolve_layer
from .buffers import Buffers
from .operator import read_and_steer

# vLLM's own models and the class of their decoder layers whose forward was read and is tested.
NATIVE = {
    "LlavaForConditionalGeneration": ("LlamaDecoderLayer",),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2DecoderLayer",),
}


def is_back_end(architecture: str) -> bool:
    """Return whether an architecture is a class of vLLM's transformers back end."""
    return architecture.startswith("Transformers")


class Target:
    """The target layer; carries h from the layer's input to the output of its self-attention, within one call."""

    buffers: Buffers  # to be set before the first forward
    h: Tensor | None = None

    def __init__(self, multiplier: float) -> None:
        self.multiplier = multiplier  # factor that the layer applies to what self-attention returned

    # Each replaces a module's forward: a hook costs more than what it does. Of the instance, since transformers has
    # put one there for some modules, which would go before that of a class.

    def keep_input(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep what enters a layer of transformers."""
        self.h = args[0] if args else kwargs["hidden_states"]
        return forward(*args, **kwargs)

    def keep_residual(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep the residual that a norm of vLLM has added up, or what the first layer's norm was given."""
        output = forward(*args, **kwargs)
        self.h = output[1] if isinstance(output, tuple) else args[0]
        return output

    def steer_update(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Read and steer what self-attention adds to the residual stream."""
        output = forward(*args, **kwargs)
        if isinstance(output, tuple):
            return (self._steer(output[0]), *output[1:])
        return self._steer(output)

    def _steer(self, update: Tensor) -> Tensor:
        h, self.h = self.h, None
        assert h is not None
        # A compiler takes it as one operator; without one, the way through torch's dispatcher would cost.
        if torch.compiler.is_compiling():
            return torch.ops.rudder_hf.steer(h, update)  # type: ignore[no-any-return]
        return read_and_steer(h, update, self.buffers)


def install(model: nn.Module, architecture: str, layer: int) -> Target | None:
    """Let the target layer steer.

    Args:
        model: What vLLM runs.
        architecture: Its name for it.
        layer: The target layer, perhaps negative.

    Returns:
        The target; None if another stage of the pipeline has the layer.

    Raises:
        ValueError: There is no such layer, or its forward is not known.
    """
    # The back end builds transformers' model without its head; vLLM's own classes have the language model inside.
    loop: Any = getattr(model, "model", None) if is_back_end(architecture) else getattr(model, "language_model", None)
    path, layers = decoder_layers(loop)
    if type(layers[layer % len(layers)]).__name__ == "PPMissingLayer":
        return None
    module = layers[resolve_layer(Backbone(loop, loop, layers, path), layer)]
    update = attention_update(module)
    target = Target(update.multiplier)
    if is_back_end(architecture):
        module.forward = partial(target.keep_input, module.forward)
    else:
        known = NATIVE[architecture]
        if type(module).__name__ not in known:
            raise ValueError(
                f"RUDDER knows vLLM's own {architecture} with {' or '.join(known)}, but this one has "
                f"{type(module).__name__}. Use vLLM's transformers back end: --model-impl transformers."
            )
        norm: Any = module.input_layernorm
        norm.forward = partial(target.keep_residual, norm.forward)
    update.module.forward = partial(target.steer_update, update.module.forward)
    return target
