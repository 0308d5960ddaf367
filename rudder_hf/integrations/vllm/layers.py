"""Where the operator meets the model: hooks on the target layer of a model that vLLM has built.

Models of vLLM's transformers back end keep the layers of transformers, whose input is h. vLLM's own classes carry a
pair (output so far, residual) from layer to layer, which `input_layernorm` adds up to h; that is known for the classes
in `NATIVE` and for no other.
"""

from __future__ import annotations

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
_BACK_END = "Transformers"
# What stands for a layer that another stage of a pipeline has.
_ELSEWHERE = "PPMissingLayer"


def is_back_end(architecture: str) -> bool:
    """Whether it is a class of vLLM's transformers back end."""
    return architecture.startswith(_BACK_END)


class Target:
    """The hooks of the target layer; carries h from one to the other, within one call of the layer.

    Attributes:
        multiplier: Factor that the layer applies to what self-attention returned.
        buffers: What the operator reads and writes, to be set before the first forward.
    """

    buffers: Buffers

    def __init__(self, multiplier: float) -> None:
        self.multiplier = multiplier
        self.h: Tensor | None = None

    def before_layer(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep what enters a layer of transformers."""
        self.h = args[0] if args else kwargs["hidden_states"]

    def after_norm(self, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the residual that a norm of vLLM has added up, or what the first layer's norm was given."""
        self.h = output[1] if isinstance(output, tuple) else args[0]

    def after_update(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Read and steer what self-attention returned."""
        h, self.h = self.h, None
        assert h is not None
        if isinstance(output, tuple):
            return (self.steer(h, output[0]), *output[1:])
        return self.steer(h, output)

    def steer(self, h: Tensor, update: Tensor) -> Tensor:
        """Through torch's dispatcher for a compiler, which takes it as one operator; without one that would cost."""
        if torch.compiler.is_compiling():
            return torch.ops.rudder_hf.steer(h, update)  # type: ignore[no-any-return]
        return read_and_steer(h, update, self.buffers)


def install(model: nn.Module, architecture: str, layer: int) -> Target | None:
    """Put the hooks on the target layer.

    Args:
        model: What vLLM runs.
        architecture: Its name for it.
        layer: The target layer, perhaps negative.

    Returns:
        The hooks; None if another stage of the pipeline has the layer.

    Raises:
        ValueError: There is no such layer, or its forward is not known.
    """
    # The back end builds transformers' model without its head; vLLM's own classes have the language model inside.
    loop: Any = getattr(model, "model", None) if is_back_end(architecture) else getattr(model, "language_model", None)
    path, layers = decoder_layers(loop)
    if type(layers[layer % len(layers)]).__name__ == _ELSEWHERE:
        return None
    module = layers[resolve_layer(Backbone(loop, loop, layers, path), layer)]
    update = attention_update(module)
    target = Target(update.multiplier)
    if is_back_end(architecture):
        module.register_forward_pre_hook(target.before_layer, with_kwargs=True)
    else:
        known = NATIVE[architecture]
        if type(module).__name__ not in known:
            raise ValueError(
                f"RUDDER knows vLLM's own {architecture} with {' or '.join(known)}, but this one has "
                f"{type(module).__name__}. Use vLLM's transformers back end: --model-impl transformers."
            )
        norm: Any = module.input_layernorm
        norm.register_forward_hook(target.after_norm)
    update.module.register_forward_hook(target.after_update)
    return target
