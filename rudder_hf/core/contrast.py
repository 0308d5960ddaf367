"""The image-value contrast, an extension that is not in the paper: cached image values are moved once from their mean.

For the positions i of an image, in the layers from `contrast_first_layer` on, with lambda = `contrast`:

    V_i <- V_i + lambda (V_i - mean of V over the positions of that image)

when `contrast_after` answer tokens have been emitted, before the forward that reads the last of them. Attention is
linear in V, so that every later token gets more of what sets the parts of the image that it attends to apart from the
image's average. The edit is made between two forwards, in place: it costs decoding nothing.

An image is, in a call with as many images as prompts with one, all image positions of a prompt, whatever some models
put between its rows or tiles; in other calls each run of adjoining image positions. What cannot be edited exactly is
refused with the reason.
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
"""Replaces the deviations V - mean of a layer's images, each (rows of the prompt, heads, positions, head size), given
the prompt of each and the index of the layer; for control experiments."""

# Inputs with one entry for each image. Pixels come last: there an image may have several, one for each tile.
_GRIDS = ("image_grid_thw", "image_grid_hw", "image_sizes", "image_grids", "target_sizes", "spatial_shapes")
_COUNTED_INPUTS = (*_GRIDS, "pixel_values")


def contrast_error(reason: str, instead: str = "") -> ValueError:
    """Make the error for a call whose images cannot be contrasted exactly."""
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
        if generated < self.after:
            return
        images = [image for image in self.images if self.strengths[image[0]] > 0]
        layers = list(enumerate(cache.layers))[self.first_layer :]
        # All places first: what is refused must not be half done.
        places = [[image_places(layer, index, positions) for _, positions in images] for index, layer in layers]
        self.edited = [
            {"prompt": prompt, "positions": positions.tolist(), "layers": [], "moved": []}
            for prompt, positions in images
        ]
        self.images = []
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
        reason = "moves its layers between devices while others compute" if getattr(cache, "offloading", False) else ""
        if not hasattr(cache, "layers"):
            reason = "has no layers of keys and values"
        for index, layer in list(enumerate(getattr(cache, "layers", ())))[self.first_layer :]:
            if hasattr(layer, "_quantize"):
                reason = "keeps its values quantised"
            elif not isinstance(layer, DynamicLayer | StaticLayer):
                reason = f"has no values in layer {index} ({type(layer).__name__})"
        if reason:
            instead = "Use a dynamic or static cache, or a `contrast_first_layer` after such layers. "
            raise contrast_error(f"the {type(cache).__name__} of this call {reason}", instead)


def image_places(layer: Any, index: int, positions: Tensor) -> Tensor | None:
    """Return where a layer keeps the values of an image; None if it has forgotten all of them."""
    lost = max(int(layer.get_seq_length()) - layer.values.shape[-2], 0) if layer.is_sliding else 0
    if not lost or positions[0] >= lost:
        return positions - lost
    if positions[-1] < lost:
        return None  # Out of the window: no later token reads it.
    raise contrast_error(
        f"the sliding window of layer {index} has lost a part of an image, whose mean is then unknown",
        "Use a shorter prompt, or a later `contrast_first_layer`. ",
    )


def open_contrast(
    backbone: Backbone,
    call: Call,
    image_tokens: Sequence[int],
    settings: CallSettings,
    contrast_map: ContrastMap | None = None,
) -> ImageContrast | None:
    """Make the edit of a call, with the images that it brings; None if no row has a strength.

    Raises a ValueError with the reason if the model or the call does not keep values of known image positions.
    """
    if not any(settings.rows["contrast"]):
        return None
    loop: Any = backbone.loop
    name, reason, text = model_type(backbone.model), "", loop.config.get_text_config(decoder=True)
    if getattr(text, "cross_attention_layers", None) or "image_attention_mask" in call.arguments:
        reason = "reads images by cross-attention, so that they have no positions in the decoder's cache"
    elif getattr(text, "kv_lora_rank", None):
        reason = "caches keys and values compressed together (latent attention)"
    elif not image_tokens and "image_embeds_position_mask" not in call.arguments:
        reason = "has no image token in its config, so that the image's positions are not known"
    if reason:
        raise UnsupportedModelError(f"RUDDER setting `contrast` does not apply: {name!r} {reason}. Use contrast=0.")
    ids, embeds, first_layer = call.input_ids, call.inputs_embeds, settings.contrast_first_layer
    if ids is None or (embeds is not None and embeds.shape[1] != ids.shape[1]):
        raise contrast_error("it needs `input_ids`, also with embeddings, to know where the image is")
    if first_layer >= len(backbone.layers):
        count = len(backbone.layers)
        raise contrast_error(f"`contrast_first_layer` is {first_layer}, but {name!r} has {count} decoder layers")
    if call.option("use_cache", True) is False:
        raise contrast_error("it edits the key-value cache, and this call runs with use_cache=False")
    if call.is_assisted:
        raise contrast_error("under assisted decoding or prompt lookup one forward reads tokens before and after it")
    return ImageContrast(
        strengths=settings.rows["contrast"],
        first_layer=first_layer,
        after=settings.contrast_after,
        images=_new_images(call, ids, image_tokens),
        contrast_map=contrast_map,
        traced=call.traced,
    )


def _new_images(call: Call, ids: Tensor, image_tokens: Sequence[int]) -> list[tuple[int, Tensor]]:
    """Find the images that a call brings: the prompt of each, and its positions in the cache."""
    mask = call.arguments.get("image_embeds_position_mask")
    if not isinstance(mask, Tensor):
        mask = torch.isin(ids, torch.tensor(image_tokens, device=ids.device))
    start, rows = mask.shape[1] - call.remaining_prompt, []
    for shown, row in zip(call.rows_with_image(image_tokens), mask.bool().cpu(), strict=True):
        if shown and not bool(row.any()):
            raise contrast_error("it needs image tokens in `input_ids`, and this call's image has none")
        rows.append(row[start:].nonzero()[:, 0] + call.cached_length if shown else torch.empty(0, dtype=torch.long))
    one_each = _image_count(call) == sum(len(row) > 0 for row in rows)
    return [
        (prompt, positions)
        for prompt, row in enumerate(rows)
        if len(row)
        for positions in ([row] if one_each else row.tensor_split((row.diff() > 1).nonzero()[:, 0] + 1))
    ]


def _image_count(call: Call) -> int | None:
    """Return the number of images of a call, or of their tiles if only these are known; None if unknown."""
    counted = (value for name in _COUNTED_INPUTS if isinstance(value := call.arguments.get(name), Tensor))
    if (value := next(counted, None)) is not None:
        # Pixels are (images, channels, height, width), or have the prompts before them.
        return value.shape[0] * (value.shape[1] if value.dim() == 5 else 1)
    return None
