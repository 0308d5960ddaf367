"""Control: the CARD of the prompt without its image."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.backbones import attention_update
from ..core.call import Call
from ..core.handle import SteeringHandle
from ..core.steering import card as card_of
from .branches import Branch, without_image
from .controls import Context, RudderControl


@dataclass(frozen=True)
class TextOnlyCard(RudderControl):
    """RUDDER with the CARD of the same prompt without its image: the language prior alone (the paper's Appendix).

    Not to be confused with `span="text"`, which pools text tokens that have attended to the image. Costs one prefill
    of the text.
    """

    name = "rudder-text-only"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rudder_config().span == "image":
            raise ValueError(f"{self.name} has no image tokens to pool: use span='prompt' or 'text'.")

    @property
    def extra_prefills(self) -> int:
        """The prompt without its image."""
        return 1

    def prepare(self, handle: SteeringHandle, call: Call, sample_ids: list[str] | None) -> Context:
        """CARD of each prompt without its image, (prompts, hidden size)."""
        text = without_image(handle.backbone.model, call)
        single = {"max_new_tokens": 1, "num_beams": 1, "num_return_sequences": 1}
        branch = Branch.prepare(handle.backbone.loop, {**text, **single})
        seen: list[Tensor] = []
        thread = threading.get_ident()

        def keep(module: object, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
            if threading.get_ident() == thread:
                seen.append(output[0] if isinstance(output, tuple) else output)

        update = attention_update(handle.backbone.layers[handle.layer]).module
        hook = update.register_forward_hook(keep)
        try:
            branch.prefill()
        finally:
            hook.remove()
        with torch.no_grad():
            return card_of(seen[0], text["attention_mask"], handle.config.pool)

    def direction(self, card: Tensor, with_image: Sequence[bool], context: Context) -> Tensor:
        """See `RudderControl.direction`."""
        return context.to(card).repeat_interleave(len(card) // len(context), dim=0)  # type: ignore[no-any-return]
