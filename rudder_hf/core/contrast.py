"""The image-value contrast, an extension that is not in the paper: cached image values are moved once from their mean.

For the positions i of an image, in the layers from `contrast_first_layer` on, with lambda = `contrast`:

    V_i <- V_i + lambda (V_i - mean of V over the positions of that image)

when `contrast_after` answer tokens have been emitted, before the forward that reads the last of them. Attention is
linear in V, so that every later token gets more of what sets the parts of the image that it attends to apart from the
image's average. Nothing is computed while tokens are decoded: the edit is made between two forwards, in place.

What an image is: in a call with as many images as prompts with one, all image positions of a prompt; the tokens that
some models put between the rows or tiles of an image do not part it. In other calls each run of adjoining image
positions. What cannot be edited exactly is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, StaticLayer

from .backbones import Backbone, model_type
from .call import Call, CallSettings
from .errors import UnsupportedModelError

ContrastMap = Callable[[list[Tensor], list[int], int], list[Tensor]]
"""Replaces the deviations V - mean of the images of a layer, each (rows of the prompt, heads, positions, head size),
given the prompt of each and the index of the layer; for control experiments."""

# Inputs with one entry for each image. Those of pixels come last: there an image may have several, one for each tile.
_COUNTED_INPUTS = ("image_grid_thw", "image_grid_hw", "image_sizes", "image_grids", "target_sizes", "spatial_shapes")


def _contrast_error(reason: str, instead: str = "") -> ValueError:
    return ValueError(f"RUDDER setting `contrast` cannot be applied: {reason}. {instead}Use contrast=0.")


@dataclass(eq=False, kw_only=True)
class ImageContrast:
    """The edit of one generation: what is still to be done, and what was done."""

    strengths: list[float]  # lambda of each prompt
    first_layer: int
    after: int  # answer tokens that are emitted before the edit
    images: list[tuple[int, Tensor]]  # still to be edited: the prompt of each, and its positions in the cache
    contrast_map: ContrastMap | None = None
    traced: bool = False
    edited: list[dict[str, Any]] = field(default_factory=list)  # see `RudderTrace.contrast`

    def before_forward(self, cache: Any, generated: int) -> None:
        """Edit the images in the cache that the coming forward reads, once `generated` answer tokens are enough."""
        if not self.images:
            return
        self._refuse_cache(cache)
        if generated >= self.after:
            self._edit(cache)
            self.images = []

    def _edit(self, cache: Any) -> None:
        images = [image for image in self.images if self.strengths[image[0]] > 0]
        layers = list(enumerate(cache.layers))[self.first_layer :]
        # All places first: what is refused must not be half done.
        places = [[image_places(layer, index, positions) for _, positions in images] for index, layer in layers]
        self.edited = [
            {"prompt": prompt, "positions": positions.tolist(), "layers": [], "moved": []}
            for prompt, positions in images
        ]
        for (index, layer), found in zip(layers, places, strict=True):
            kept = [pair for pair in zip(self.edited, found, strict=True) if pair[1] is not None]
            self._edit_layer(layer.values, index, [record for record, _ in kept], [place for _, place in kept])

    def _edit_layer(self, values: Tensor, index: int, records: list[dict[str, Any]], places: list[Any]) -> None:
        """Edit the values of one layer, (rows, heads, positions, head size), in place."""
        # The rows of a prompt (beams, return sequences) lie together.
        prompts, each = [record["prompt"] for record in records], values.shape[0] // len(self.strengths)
        rows = [values[prompt * each : (prompt + 1) * each] for prompt in prompts]
        places = [place.to(values.device) for place in places]
        own = [part.index_select(2, place) for part, place in zip(rows, places, strict=True)]
        own = [part.float() if part.dtype.itemsize < 4 else part for part in own]
        deviations = [part - part.mean(dim=2, keepdim=True) for part in own]
        if self.contrast_map is not None:
            deviations = self.contrast_map(deviations, prompts, index)
        for part, place, value, deviation, record in zip(rows, places, own, deviations, records, strict=True):
            move = self.strengths[record["prompt"]] * deviation
            part.index_copy_(2, place, (value + move).to(values.dtype))
            if self.traced:
                record["layers"].append(index)
                record["moved"].append(float(move.norm() / value.norm().clamp_min(1e-12)))

    def _refuse_cache(self, cache: Any) -> None:
        """Raise for a cache whose values cannot be edited in place."""
        reason = None
        if not hasattr(cache, "layers"):
            raise _contrast_error(f"it edits the key-value cache, but this call has a {type(cache).__name__} for one")
        if getattr(cache, "offloading", False):
            reason = "moves its layers between devices while others compute"
        for index, layer in list(enumerate(cache.layers))[self.first_layer :]:
            if hasattr(layer, "_quantize"):
                reason = "keeps its values quantised"
            elif not isinstance(layer, DynamicLayer | StaticLayer):
                reason = f"has no values in layer {index} ({type(layer).__name__})"
        if reason is not None:
            instead = "Use a dynamic or static cache, or a `contrast_first_layer` after such layers. "
            raise _contrast_error(f"this {type(cache).__name__} {reason}", instead)


def image_places(layer: Any, index: int, positions: Tensor) -> Tensor | None:
    """Return where a layer keeps the values of an image; None if it has forgotten all of them."""
    lost = max(int(layer.get_seq_length()) - layer.values.shape[-2], 0) if layer.is_sliding else 0
    if not lost or positions[0] >= lost:
        return positions - lost
    if positions[-1] < lost:
        # Out of the window: no later token reads it.
        return None
    raise _contrast_error(
        f"the sliding window of layer {index} has lost a part of an image, whose mean is then unknown",
        "Use a shorter prompt, or a later `contrast_first_layer`. ",
    )


def open_contrast(
    backbone: Backbone, call: Call, image_tokens: Sequence[int], settings: CallSettings
) -> ImageContrast | None:
    """Make the edit of a call, with the images that it brings; None if no row has a strength.

    Raises:
        UnsupportedModelError: The model keeps no values of image positions in its decoder's cache.
        ValueError: The call has no cache, or its image positions are unknown.
    """
    if not any(settings.rows["contrast"]):
        return None
    _refuse_model(backbone, call, image_tokens)
    if settings.contrast_first_layer >= len(backbone.layers):
        raise ValueError(
            f"RUDDER setting `contrast_first_layer` is {settings.contrast_first_layer}, but "
            f"{model_type(backbone.model)!r} has {len(backbone.layers)} decoder layers: choose from 0 to "
            f"{len(backbone.layers) - 1}."
        )
    if call.option("use_cache", True) is False:
        raise _contrast_error("it edits the key-value cache, and this call runs with use_cache=False")
    if call.is_assisted:
        raise _contrast_error(
            "under assisted decoding or prompt lookup one forward would read candidates before and after the edit",
            "Leave out the assistant (or prompt_lookup_num_tokens). ",
        )
    return ImageContrast(
        strengths=settings.rows["contrast"],
        first_layer=settings.contrast_first_layer,
        after=settings.contrast_after,
        images=_new_images(call, image_tokens),
        traced=call.traced,
    )


def _refuse_model(backbone: Backbone, call: Call, image_tokens: Sequence[int]) -> None:
    """Raise where the decoder's cache has no values of image positions, or where they are is not known."""
    config: Any = backbone.loop.config
    text = config.get_text_config(decoder=True)
    reason = None
    if getattr(text, "cross_attention_layers", None) or "image_attention_mask" in call.arguments:
        reason = "it reads images by cross-attention, so that they have no positions in the decoder's cache"
    elif getattr(text, "kv_lora_rank", None):
        reason = "its latent attention caches compressed keys and values together, not values"
    elif not image_tokens and "image_embeds_position_mask" not in call.arguments:
        reason = "its config names no image token, so that the image's positions are not known"
    if reason is not None:
        raise UnsupportedModelError(
            f"RUDDER setting `contrast` does not apply to {model_type(backbone.model)!r}: {reason}. Use contrast=0."
        )
    ids, embeds = call.input_ids, call.inputs_embeds
    if ids is None or (embeds is not None and embeds.shape[1] != ids.shape[1]):
        raise _contrast_error(
            "it needs `input_ids` to know where the image is, for every position of the prompt",
            "Pass them along with the embeddings. ",
        )


def _new_images(call: Call, image_tokens: Sequence[int]) -> list[tuple[int, Tensor]]:
    """Find the images that a call brings: the prompt of each, and its positions in the cache."""
    assert call.input_ids is not None
    mask = call.arguments.get("image_embeds_position_mask")
    if not isinstance(mask, Tensor):
        mask = torch.isin(call.input_ids, torch.tensor(image_tokens, device=call.input_ids.device))
    mask = mask.bool().cpu()
    with_image = call.rows_with_image(image_tokens)
    if any(shown and not bool(row.any()) for shown, row in zip(with_image, mask, strict=True)):
        raise _contrast_error("it needs image tokens in `input_ids`, and this call's image has none")
    start = mask.shape[1] - call.remaining_prompt
    rows = [
        row[start:].nonzero()[:, 0] + call.cached_length if shown else torch.empty(0, dtype=torch.long)
        for shown, row in zip(with_image, mask, strict=True)
    ]
    one_each = _image_count(call) == sum(len(row) > 0 for row in rows)
    return [
        (prompt, positions)
        for prompt, row in enumerate(rows)
        if len(row)
        for positions in ([row] if one_each else row.tensor_split((row.diff() > 1).nonzero()[:, 0] + 1))
    ]


def _image_count(call: Call) -> int | None:
    """Return the number of images of a call, or of their tiles if only these are known; None if unknown."""
    for name in _COUNTED_INPUTS:
        if isinstance(value := call.arguments.get(name), Tensor):
            return len(value)
    pixels = call.arguments.get("pixel_values")
    if not isinstance(pixels, Tensor):
        return None
    # (images, channels, height, width), or with the prompts before them.
    return pixels.shape[0] * (pixels.shape[1] if pixels.dim() == 5 else 1)
