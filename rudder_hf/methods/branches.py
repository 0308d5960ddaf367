"""Side branches: the same model on another prompt or picture, decoding the tokens that the main branch chose.

A branch is prepared by the model's own `generate`, which is stopped before its token loop through the
`custom_generate` extension point. Positions, masks, image features and beams are thereby what the model itself makes
of the changed arguments, whatever the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import Backbone, UnsupportedModelError, image_token_ids
from ..core.call import Call

# Arguments that belong to the main branch's loop, or to a cache that the side branch does not share.
_MAIN_ONLY = (
    *("streamer", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "assistant_model", "tokenizer"),
    *("negative_prompt_ids", "negative_prompt_attention_mask", "past_key_values", "custom_generate", "synced_gpus"),
)
# Tokens that some configs name as the frame of an image; without the image they go too.
_FRAME_TOKEN_NAMES = ("vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id")


class Branch:
    """One side branch: what `generate` prepared for it, with a cache of its own.

    Args:
        loop: The module that is called for each token.
        input_ids: The prompt's ids, (rows, length).
        model_kwargs: What goes to the model beside them.
    """

    def __init__(self, loop: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        self.loop = loop
        self.input_ids = input_ids
        self.model_kwargs = model_kwargs

    @classmethod
    def prepare(cls, model: Any, arguments: Mapping[str, Any]) -> Branch:
        """Let a model's own `generate` prepare the arguments, and stop there.

        Args:
            model: The model whose `generate` takes the arguments.
            arguments: Prompt, pictures and options; what belongs to the main loop alone is left out.
        """

        def stop(loop: Any, input_ids: Tensor, **prepared: Any) -> Branch:
            own = ("logits_processor", "stopping_criteria", "generation_config")
            return cls(loop, input_ids, {name: value for name, value in prepared.items() if name not in own})

        arguments = {name: value for name, value in arguments.items() if name not in _MAIN_ONLY}
        # A static cache is kept on the model and would be shared; texts to stop at need a tokenizer.
        arguments |= {"use_cache": True, "cache_implementation": "dynamic", "stop_strings": None}
        branch = type(model).generate(model, **arguments, custom_generate=stop)
        if not isinstance(branch, Branch):
            raise UnsupportedModelError(
                f"This method needs a side branch, but `generate` of {type(model).__name__} does not take part in "
                "`custom_generate`, by which it is prepared."
            )
        return branch

    @torch.no_grad()
    def prefill(self) -> Tensor:
        """Forward the prompt; the logits of the first token, (rows, vocabulary) in float32."""
        return self._forward(None, is_first_iteration=True)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Forward the tokens that the main branch chose, (rows, 1); the logits of the next ones."""
        self.input_ids = torch.cat([self.input_ids, tokens.to(self.input_ids.device)], dim=1)
        return self._forward(1, is_first_iteration=False)

    def _forward(self, length: int | None, is_first_iteration: bool) -> Tensor:
        inputs = self.loop.prepare_inputs_for_generation(
            self.input_ids, next_sequence_length=length, is_first_iteration=is_first_iteration, **self.model_kwargs
        )
        output = self.loop(**inputs, return_dict=True)
        self.model_kwargs = self.loop._update_model_kwargs_for_generation(output, self.model_kwargs)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def reorder(self, beams: Tensor) -> None:
        """Follow the main branch's beams: row i goes on from what row `beams[i]` was."""
        self.input_ids = self.input_ids[beams.to(self.input_ids.device)]
        self.model_kwargs["past_key_values"].reorder_cache(beams)


def arguments_of(call: Call) -> dict[str, Any]:
    """The arguments of `generate` by name, to be passed on as keywords."""
    return {name: value for name, value in call.arguments.items() if value is not call.model}


def prompt_mask(call: Call) -> Tensor:
    """1 for the prompt's tokens and 0 for padding, (prompts, length), as `generate` would infer it.

    Raises:
        ValueError: The call has no `input_ids`.
    """
    ids = call.input_ids
    if ids is None:
        raise ValueError(
            "This method needs `input_ids` to tell text from image; a prompt of embeddings alone does not say. Pass "
            "what the processor returns."
        )
    mask = call.arguments.get("attention_mask")
    if isinstance(mask, Tensor):
        return mask.bool()
    pad = call.option("pad_token_id")
    return torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad


def image_positions(model: nn.Module, call: Call) -> Tensor:
    """True where a prompt token stands for image features, (prompts, length).

    Raises:
        ValueError: The model's config names no image token, or the call has no ids.
    """
    mask = prompt_mask(call)
    tokens = image_token_ids(model)
    if not tokens:
        raise ValueError(
            f"This method needs a model whose config names its image token; {type(model).__name__} does not."
        )
    assert call.input_ids is not None
    return torch.isin(call.input_ids, torch.tensor(tokens, device=mask.device)) & mask


def without_image(model: nn.Module, call: Call) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` of the prompts without their images, left-padded anew.

    Image placeholders are taken out, and the tokens that frame an image where the config names them.
    """
    image = image_positions(model, call)
    ids = call.input_ids
    assert ids is not None
    frame = [getattr(model.config, name, None) for name in _FRAME_TOKEN_NAMES]
    frame_ids = torch.tensor([token for token in frame if isinstance(token, int)], dtype=ids.dtype, device=ids.device)
    kept = prompt_mask(call) & ~image & ~torch.isin(ids, frame_ids)
    rows = [row[keep] for row, keep in zip(ids, kept, strict=True)]
    if any(len(row) == 0 for row in rows):
        raise ValueError(
            "This method runs the prompt without its image, but a prompt is nothing but an image. Add text."
        )
    width = max(len(row) for row in rows)
    pad = call.option("pad_token_id", 0)
    pad = int(torch.as_tensor(pad).flatten()[0])
    new_ids = torch.stack([nn.functional.pad(row, (width - len(row), 0), value=pad) for row in rows])
    new_mask = torch.stack([nn.functional.pad(torch.ones_like(row), (width - len(row), 0)) for row in rows])
    return {"input_ids": new_ids, "attention_mask": new_mask}


def text_branch(backbone: Backbone, call: Call, options: Mapping[str, Any]) -> Branch:
    """A branch that reads the prompts without their images.

    It is prepared by the module that runs the loop, because InstructBLIP and its kin take no prompt without image.
    """
    return Branch.prepare(backbone.loop, {**options, **without_image(backbone.model, call)})
