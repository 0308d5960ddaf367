"""Side branches: the same model on another prompt, or on other images, that decodes the main branch's tokens.

A branch is prepared by the model's own `generate`, which is stopped before its token loop through the
`custom_generate` extension point. Positions, masks, image features and beams are thereby what the model itself makes
of the changed arguments, whatever the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from ..core.backbones import Backbone, image_token_ids
from ..core.call import Call
from ..core.errors import UnsupportedModelError

# Arguments that belong to the main branch's loop, or to a cache that the side branch does not share.
_MAIN_ONLY = (
    *("streamer", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "assistant_model", "tokenizer"),
    *("negative_prompt_ids", "negative_prompt_attention_mask", "past_key_values", "custom_generate", "synced_gpus"),
)
# Tokens that some configs name as the frame of an image; without the image they go too.
_FRAME_TOKEN_NAMES = ("vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id")
# Options of a branch that only reads the prompts: one row for each.
SINGLE = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "max_new_tokens": 1}


@dataclass
class Branch:
    """One side branch: what `generate` prepared for it, with a key-value cache of its own."""

    loop: Any  # the module that is called for each token
    input_ids: Tensor  # the prompt's ids, (rows, length), and the tokens after it
    model_kwargs: dict[str, Any]  # the other arguments of the model

    @classmethod
    def prepare(cls, model: Any, arguments: Mapping[str, Any]) -> Branch:
        """Let a model's own `generate` prepare the arguments, and stop there.

        Args:
            model: The model whose `generate` takes the arguments.
            arguments: Prompt, images and options; what belongs to the main loop alone is left out.
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
    def forward(self, tokens: Tensor | None = None) -> Tensor:
        """Forward the prompt, or the tokens that the main branch chose after it.

        Args:
            tokens: (rows, 1); None for the prompt, which comes first.

        Returns:
            The logits of the next tokens, (rows, vocabulary) in float32.
        """
        if tokens is not None:
            self.input_ids = torch.cat([self.input_ids, tokens.to(self.input_ids.device)], dim=1)
        inputs = self.loop.prepare_inputs_for_generation(
            self.input_ids,
            next_sequence_length=None if tokens is None else 1,
            is_first_iteration=tokens is None,
            **self.model_kwargs,
        )
        output = self.loop(**inputs, return_dict=True)
        self.model_kwargs = self.loop._update_model_kwargs_for_generation(
            output, self.model_kwargs, is_encoder_decoder=False
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def read(self, modules: Sequence[nn.Module], take: Callable[..., Any] | None = None) -> list[Any]:
        """Forward the prompt and return what `take` finds in each module's arguments and output.

        Args:
            modules: Modules of the loop.
            take: Called with positional arguments, keyword arguments and output. None takes the output at the last
                position, (rows, hidden size) in float32.
        """
        seen: dict[nn.Module, Any] = {}
        thread = threading.get_ident()
        take = take or (lambda args, kwargs, output: hidden_states_of(output)[:, -1].float())

        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                seen[module] = take(args, kwargs, output)

        with ExitStack() as exits:
            for module in modules:
                exits.callback(module.register_forward_hook(keep, with_kwargs=True).remove)
            self.forward()
        return [seen[module] for module in modules]

    def reorder(self, beams: Tensor) -> None:
        """Follow the main branch's beams: row i goes on from what row `beams[i]` was."""
        self.input_ids = self.input_ids[beams.to(self.input_ids.device)]
        self.model_kwargs["past_key_values"].reorder_cache(beams)


def text_branch(backbone: Backbone, call: Call, **options: Any) -> Branch:
    """A branch that reads the prompts of a call without their images; `options` of generation differ from the call's.

    It is prepared by the module that runs the loop, because models that delegate to a language model, such as
    InstructBLIP, take no prompt without image.
    """
    known = ("generation_config", *vars(GenerationConfig()))
    own = {name: value for name, value in call.arguments.items() if name in known}
    return Branch.prepare(backbone.loop, {**own, **options, **without_image(backbone.model, call)})


def _ids_and_mask(call: Call) -> tuple[Tensor, Tensor]:
    """The prompts' ids, and True where they are not padding, as `generate` would infer it, (prompts, length) each."""
    ids, mask, pad = call.input_ids, call.arguments.get("attention_mask"), call.option("pad_token_id")
    if ids is None:
        raise ValueError(
            "This method needs `input_ids` to distinguish text from image; embeddings alone do not. Pass what the "
            "processor returns."
        )
    if isinstance(mask, Tensor):
        return ids, mask.bool()
    return ids, torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad


def image_positions(model: nn.Module, call: Call) -> Tensor:
    """True where a prompt token stands for image features, (prompts, length).

    Raises:
        ValueError: The model's config names no image token, or the call has no ids.
    """
    ids, mask = _ids_and_mask(call)
    tokens = image_token_ids(model)
    if not tokens:
        raise ValueError(
            f"This method needs a model whose config names its image token; {type(model).__name__} does not."
        )
    return torch.isin(ids, torch.tensor(tokens, device=mask.device)) & mask


def without_image(model: nn.Module, call: Call) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` of the prompts without their images, left-padded anew.

    Image placeholders are taken out, and the tokens that frame an image where the config names them.
    """
    ids, mask = _ids_and_mask(call)
    named = (getattr(model.config, name, None) for name in _FRAME_TOKEN_NAMES)
    frame = torch.tensor([token for token in named if isinstance(token, int)], dtype=ids.dtype, device=ids.device)
    kept = mask & ~image_positions(model, call) & ~torch.isin(ids, frame)
    rows = [row[keep] for row, keep in zip(ids, kept, strict=True)]
    if any(len(row) == 0 for row in rows):
        raise ValueError(
            "This method runs the prompt without its image, but a prompt is nothing but an image. Add text."
        )
    pad = int(torch.as_tensor(call.option("pad_token_id", 0)).flatten()[0])
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=pad, padding_side="left"),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left"),
    }


def hidden_states_of(output: Any) -> Tensor:
    """The tensor in what a module returns: it, the first of a tuple, or the `last_hidden_state` of a model output."""
    output = getattr(output, "last_hidden_state", output)
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
