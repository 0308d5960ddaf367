"""What one call of `generate` asks for: `Call`, its arguments by name, and `CallSettings`, RUDDER's for its rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .settings import CALL_SETTINGS, ROW_SETTINGS, check_gate_range, check_setting, push_settings

Override = Any
"""What a caller may pass as `rudder=`: a bool, a mapping, a `RudderConfig` or None."""

# Arguments whose names start like this carry images.
_IMAGE_ARGUMENTS = ("pixel_values", "image", "video", "mm_encoder_outputs", "high_res_pixel_values")


class Call:
    """One call of a model's `generate`, with what it asks of RUDDER (`rudder=`, and `traced` for `output_rudder=`)."""

    def __init__(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rudder: Override = None,
        traced: bool | None = None,
    ) -> None:
        self.model = model
        signature = inspect.signature(type(model).generate)
        bound = signature.bind_partial(model, *args, **kwargs).arguments
        extra = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                extra = bound.pop(name, {})
        self.arguments: dict[str, Any] = {**bound, **extra}  # all of them, by name
        ids = [self.arguments.get(name) for name in ("input_ids", "inputs")]
        self.input_ids: Tensor | None = next(
            (value for value in ids if isinstance(value, Tensor) and not torch.is_floating_point(value)), None
        )
        self.inputs_embeds: Tensor | None = self.arguments.get("inputs_embeds")
        # Servers pass a request's generation config on, and nothing that they do not know.
        self.rudder: Override = self.option("rudder") if rudder is None else rudder
        self.traced = bool(traced)
        # Read now: the cache that the caller passed in grows while the call runs.
        self.cache: Any = self.arguments.get("past_key_values")
        length = getattr(self.cache, "get_seq_length", None)
        self.cached_length = int(length()) if length is not None else 0
        self.has_images = any(
            value is not None and name.startswith(_IMAGE_ARGUMENTS) for name, value in self.arguments.items()
        )

    def delegated(self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return the call that this one makes of a language model: its arguments, for what was asked here."""
        inner = Call(model, args, kwargs, traced=self.traced)
        inner.rudder, inner.has_images = self.rudder, self.has_images
        return inner

    def option(self, name: str, default: Any = None) -> Any:
        """Return a generation option: from the call, its `generation_config`, or the model's, in this order.

        None in the call itself unsets the option.
        """
        if name in self.arguments:
            return default if self.arguments[name] is None else self.arguments[name]
        for config in (self.arguments.get("generation_config"), getattr(self.model, "generation_config", None)):
            value = getattr(config, name, None)
            if value is not None:
                return value
        return default

    @property
    def is_assisted(self) -> bool:
        """Return whether one forward verifies several candidates: assisted decoding or prompt lookup."""
        return bool(self.option("prompt_lookup_num_tokens")) or self.arguments.get("assistant_model") is not None

    @property
    def batch(self) -> int:
        """Return the number of prompts."""
        for value in (self.input_ids, self.inputs_embeds, self.arguments.get("inputs")):
            if isinstance(value, Tensor):
                return value.shape[0]
        return 1

    @property
    def prompt_length(self) -> int:
        """Return the length that `input_ids` starts with; without any, `generate` starts with one token."""
        if self.input_ids is not None:
            return self.input_ids.shape[1]
        return 1 if self.inputs_embeds is None else 0

    @property
    def remaining_prompt(self) -> int:
        """Return the number of prompt positions that are still to be forwarded."""
        if self.inputs_embeds is not None:
            return self.inputs_embeds.shape[1] - self.cached_length
        mask = self.arguments.get("attention_mask")
        whole = mask is None or mask.shape[1] == self.prompt_length
        return self.prompt_length - (self.cached_length if whole else 0)

    def rows_with_image(self, image_tokens: Sequence[int]) -> list[bool]:
        """Return for each prompt whether it contains an image, by placeholder tokens where the model has them."""
        # Kosmos-2 and Idefics say by a mask which positions belong to an image.
        for name in ("image_embeds_position_mask", "image_attention_mask"):
            if isinstance(mask := self.arguments.get(name), Tensor):
                return [bool(row.any()) for row in mask]
        ids = self.input_ids
        if ids is not None and image_tokens:
            rows: list[bool] = torch.isin(ids, torch.tensor(image_tokens, device=ids.device)).any(dim=1).tolist()
            if any(rows):
                return [row and (self.has_images or self.inputs_embeds is not None) for row in rows]
        elif self.inputs_embeds is not None:
            # Embeddings alone do not show it, and most often are made because there is an image.
            return [True] * self.batch
        # Images without any placeholder: the model takes them by another way than the prompt's ids.
        return [self.has_images] * self.batch

    def refuse_unsupported(self) -> None:
        """Raise where stock transformers would lose the image or break the spans, with the reason."""
        if self.option("cache_implementation") == "paged":
            raise ValueError(
                "RUDDER does not steer continuous batching (cache_implementation='paged'): it bypasses the generation "
                "loop. Use another cache, or pass rudder=False."
            )
        if self.option("prefill_chunk_size") is not None and self.has_images:
            raise ValueError(
                "transformers drops the images of a prompt when it is prefilled in chunks, so there is nothing for "
                "RUDDER to anchor to. Unset `prefill_chunk_size`."
            )
        if self.option("token_healing"):
            raise ValueError("RUDDER cannot tell prompt from answer under token_healing=True. Unset it.")
        if self.is_assisted and self.inputs_embeds is not None:
            raise ValueError(
                f"{type(self.model).__name__} is prompted with embeddings, and transformers then drops the candidates "
                "of assisted decoding and prompt lookup, with or without RUDDER. Unset them."
            )
        if self.traced and not self.option("return_dict_in_generate", False):
            raise ValueError("output_rudder=True needs return_dict_in_generate=True: the trace is `out.rudder`.")


@dataclass(frozen=True)
class CallSettings:
    """Checked settings of one call; see [`RudderConfig`] for their meaning."""

    rows: dict[str, list[Any]]  # for each of `ROW_SETTINGS` one value per row of the batch
    mode: str
    pool: str
    span: str
    steer_first_token: bool
    contrast_first_layer: int
    contrast_after: int
    force: bool  # whether rows without an image are steered too

    def push_rows(self) -> list[tuple[float, ...]]:
        """Return the settings of the push for each row, as [`push_settings`] folds them."""
        rows = zip(*self.rows.values(), strict=True)
        return [push_settings(dict(zip(self.rows, row, strict=True)), self.mode) for row in rows]

    def is_steered(self, row: int) -> bool:
        """Return whether a row has any strength."""
        return bool(self.rows["alpha_max"][row] or self.rows["contrast"][row])

    def record(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {**self.rows, **{name: getattr(self, name) for name in CALL_SETTINGS if name not in self.rows}}


def resolve_settings(
    config: Any, override: Override, batch: int, layer: int | None = None, layers: int = 0
) -> CallSettings:
    """Combine the model's settings with those of a call on `batch` prompts.

    Only what the call brings is checked here: settings of a config are checked when they are set.

    Args:
        config: The model's settings, a `RudderConfig`.
        override: None or True for the config's; False for strength 0; a `RudderConfig`; or a mapping of settings for
            this call, whose row settings may be sequences with one value per prompt.
        batch: Number of prompts, before beams and return sequences multiply them.
        layer: Index of the installed layer from 0 on, which the override may name too.
        layers: Number of the decoder's layers, for an override that counts from the end.

    Raises:
        ValueError: A setting is unknown, out of range or has the wrong number of rows.
        TypeError: `override` is none of the above.
    """
    given = _overridden(override)
    asked = given.pop("layer", config.layer)
    if asked != config.layer and (layer is None or check_setting("layer", asked) not in (layer, layer - layers)):
        raise ValueError(
            f"The layer cannot change within a call: {config.layer} is installed, {asked} was asked for. "
            "Set `model.config.layer` (or detach and attach again) between calls."
        )
    columns = {name: [getattr(config, name)] * batch for name in ROW_SETTINGS}
    shared = {name: getattr(config, name) for name in CALL_SETTINGS if name not in ROW_SETTINGS} | {"force": False}
    for name, value in given.items():
        if name in columns:
            columns[name] = [check_setting(name, each) for each in _column(name, value, batch)]
        else:
            shared[name] = check_setting(name, value)
    for bounds in set(zip(columns["g_min"], columns["g_max"], strict=True)):
        check_gate_range(*bounds)
    return CallSettings(columns, **shared)


def _overridden(override: Override) -> dict[str, Any]:
    """Return the settings that a call brings, by name."""
    if override is None or isinstance(override, bool):
        return {"alpha_max": 0.0, "contrast": 0.0} if override is False else {}
    if hasattr(override, "settings"):
        return dict(override.settings())
    if isinstance(override, Mapping):
        return dict(override)
    raise TypeError(
        f"rudder={override!r} is not understood. Pass False (unsteered), or a dictionary of settings for this call, "
        "whose values may be lists with one value for each prompt."
    )


def _column(name: str, value: Any, batch: int) -> list[Any]:
    """Return one value per row, from a scalar or a sequence."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return [value] * batch
    if len(value) != batch:
        raise ValueError(
            f"RUDDER setting `{name}` has {len(value)} values for a batch of {batch} prompts: "
            "give one number, or one for each prompt."
        )
    return list(value)
