"""Prompts with other or no images, and side branches: the same model on such a prompt, decoding the main's tokens.

A branch is prepared by the model's own `generate`, which is stopped before its token loop through the
`custom_generate` extension point. Positions, masks, image features and beams are thereby what the model itself makes
of the changed arguments, whatever the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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
_GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}


class Branch:
    """One side branch: what `generate` prepared for it, with a key-value cache of its own.

    Args:
        loop: The module that is called for each token.
        input_ids: The prompt's ids, (rows, length).
        model_kwargs: The other arguments of the model.
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


def text_branch(backbone: Backbone, call: Call, options: Mapping[str, Any]) -> Branch:
    """A branch that reads the prompts without their images.

    It is prepared by the module that runs the loop, because models that delegate to a language model, such as
    InstructBLIP, take no prompt without image.
    """
    return Branch.prepare(backbone.loop, {**options, **without_image(backbone.model, call)})


def arguments_of(call: Call) -> dict[str, Any]:
    """The arguments of `generate` by name, to be passed on as keywords."""
    return {name: value for name, value in call.arguments.items() if value is not call.model}


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
        "input_ids": pad_left(rows, pad),
        "attention_mask": pad_left([torch.ones_like(row) for row in rows], 0),
    }


def pad_left(rows: list[Tensor], value: int) -> Tensor:
    """Rows of different lengths as one tensor, padded on the left."""
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side="left")


def image_owners(model: nn.Module, call: Call, name: str) -> Iterator[tuple[int, int, int, int]]:
    """For each image of a tensor: its first row, the row after its last, its prompt, its place in that prompt.

    Images lie in the order of the prompts, one for each row of the tensor, or, where a grid gives their sizes (Qwen),
    several rows of patches to an image. The number of placeholders says which prompt they belong to.

    Args:
        model: The model that takes them.
        call: The arguments of `generate`.
        name: Of the tensor.
    """
    pixels: Tensor = call.arguments[name]
    grid = call.arguments.get(_GRIDS.get(name, ""))
    heights = [1] * len(pixels) if grid is None else [int(size) for size in grid.prod(-1)]
    owners = _owners(model, call, heights, by_prompt=grid is None and len(pixels) == call.batch)
    start, places = 0, dict.fromkeys(range(call.batch), 0)
    for height, prompt in zip(heights, owners, strict=True):
        yield start, start + height, prompt, places[prompt]
        places[prompt] += 1
        start += height


def _owners(model: nn.Module, call: Call, heights: list[int], by_prompt: bool) -> list[int]:
    """The prompt of each image: images share the placeholders in proportion to their sizes."""
    tokens, ids = image_token_ids(model), call.input_ids
    if by_prompt or ids is None or not tokens:
        return [min(index, call.batch - 1) for index in range(len(heights))]
    placeholders = torch.isin(ids, torch.tensor(tokens, device=ids.device)).sum(dim=1).cumsum(dim=0).tolist()
    total, seen, owners = sum(heights), 0, []
    for height in heights:
        # The middle of an image's share of the placeholders lies within its own prompt.
        middle = (seen + height / 2) / total * placeholders[-1]
        owners.append(next((row for row, last in enumerate(placeholders) if middle < last), call.batch - 1))
        seen += height
    return owners
