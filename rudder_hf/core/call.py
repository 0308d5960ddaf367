"""What one call of `generate` asks for: `Call`, its arguments by name, and `CallSettings`, RUDDER's for its rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration import CALL_SETTINGS, ROW_SETTINGS, STEERING_ROWS, RudderConfig, check_setting, check_settings

Override = bool | Mapping[str, Any] | Sequence[Any] | RudderConfig | None
"""What a caller may pass as `rudder=`."""

# What `rudder=False` stands for.
_UNSTEERED = {"alpha_max": 0.0, "contrast": 0.0}
# Arguments whose names start like this carry images.
_IMAGE_ARGUMENTS = ("pixel_values", "image", "video", "mm_encoder_outputs", "high_res_pixel_values")


class Call:
    """One call of a model's `generate`, with what it asks of RUDDER (`rudder=`, and `traced` for `output_rudder=`).

    Attributes:
        arguments: All arguments by name.
        input_ids: The prompt's ids, wherever they were passed.
        inputs_embeds: The prompt's embeddings, if they were passed.
        cache: The key-value cache that the caller passes in, if any.
        cached_length: Number of positions it holds when the call begins.
        has_images: Whether the call carries images.
    """

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
        self.arguments: dict[str, Any] = {**bound, **extra}
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
        """The call that this one makes of a language model: its arguments, for what was asked here."""
        inner = Call(model, args, kwargs, traced=self.traced)
        inner.rudder, inner.has_images = self.rudder, self.has_images
        return inner

    def option(self, name: str, default: Any = None) -> Any:
        """A generation option: from the call, its `generation_config`, or the model's, in this order.

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
    def batch(self) -> int:
        """Number of prompts."""
        for value in (self.input_ids, self.inputs_embeds, self.arguments.get("inputs")):
            if isinstance(value, Tensor):
                return value.shape[0]
        return 1

    @property
    def prompt_length(self) -> int:
        """Length that `input_ids` starts with; a call without any starts with the one token that `generate` adds."""
        if self.input_ids is not None:
            return self.input_ids.shape[1]
        return 1 if self.inputs_embeds is None else 0

    @property
    def remaining_prompt(self) -> int:
        """Number of prompt positions that are still to be forwarded."""
        if self.inputs_embeds is not None:
            return self.inputs_embeds.shape[1] - self.cached_length
        mask = self.arguments.get("attention_mask")
        whole = mask is None or mask.shape[1] == self.prompt_length
        return self.prompt_length - (self.cached_length if whole else 0)

    def rows_with_image(self, image_tokens: Sequence[int]) -> list[bool]:
        """For each prompt whether it contains an image, judged by placeholder tokens where the model has them."""
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
            # Embeddings alone do not tell, and are made most often because there is an image.
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
        assisted = self.option("prompt_lookup_num_tokens") or self.arguments.get("assistant_model") is not None
        if assisted and self.inputs_embeds is not None:
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

    def row_tensors(self, expand: int, steered: Sequence[bool], device: torch.device) -> dict[str, Tensor]:
        """The settings of the push as float32 tensors of `expand` rows per row of the batch (beams, return sequences).

        Rows that are not to be steered get strength 0; rows without a norm cap an infinite one.
        """
        columns = {name: self.rows[name] for name in STEERING_ROWS}
        columns["alpha_max"] = [a if use else 0.0 for a, use in zip(columns["alpha_max"], steered, strict=True)]
        columns["norm_cap"] = [math.inf if cap is None else cap for cap in columns["norm_cap"]]
        return {
            name: torch.tensor(column, dtype=torch.float32, device=device).repeat_interleave(expand)
            for name, column in columns.items()
        }

    def record(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return {**self.rows, **{name: getattr(self, name) for name in CALL_SETTINGS if name not in self.rows}}


def resolve_settings(config: RudderConfig, override: Override, batch: int, layer: int | None = None) -> CallSettings:
    """Settings of a call on `batch` prompts, each checked once.

    Args:
        config: The model's settings.
        override: None or True for the config's; False for strength 0; a mapping of settings for this call, whose row
            settings may be sequences with one value per prompt; a `RudderConfig`; or a sequence with one entry per
            prompt, each None (the config's), False (unsteered) or a mapping of row settings.
        batch: Number of prompts, before beams and return sequences multiply them.
        layer: Index of the installed layer from 0 on, which the override may name too.

    Raises:
        ValueError: A setting is unknown, out of range or has the wrong number of rows.
        TypeError: `override` is none of the above.
    """
    values: dict[str, Any] = {name: getattr(config, name) for name in CALL_SETTINGS} | {"force": False}
    if isinstance(override, RudderConfig):
        override = override.settings()
    elif isinstance(override, Sequence) and not isinstance(override, str):
        override = _columns_from_rows(values, override, batch)
    elif override is None or isinstance(override, bool):
        override = _UNSTEERED if override is False else {}
    if not isinstance(override, Mapping):
        raise TypeError(
            f"rudder={override!r} is not understood. Pass False (unsteered), a dictionary of settings for this call, "
            "or a list with one dictionary, None or False for each prompt."
        )
    values |= override
    if (asked := values.pop("layer", config.layer)) not in (config.layer, layer):
        raise ValueError(
            f"The layer cannot change within a call: {config.layer} is installed, {asked} was asked for. "
            "Set `model.config.layer` (or detach and attach again) between calls."
        )
    columns = {name: _column(name, values.pop(name), batch) for name in ROW_SETTINGS}
    rows = [check_settings({name: columns[name][row] for name in ROW_SETTINGS}) for row in range(batch)]
    of_all_rows = {name: check_setting(name, value) for name, value in values.items()}
    return CallSettings({name: [row[name] for row in rows] for name in ROW_SETTINGS}, **of_all_rows)


def _column(name: str, value: Any, batch: int) -> list[Any]:
    """One value per row, from a scalar or a sequence."""
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


def _columns_from_rows(defaults: Mapping[str, Any], rows: Sequence[Any], batch: int) -> dict[str, list[Any]]:
    """Turn one override per prompt into one column per setting."""
    if len(rows) != batch:
        raise ValueError(f"rudder= has {len(rows)} entries for a batch of {batch} prompts: give one for each prompt.")
    settings = [_UNSTEERED if row is False else {} if row is None or row is True else row for row in rows]
    for index, row in enumerate(settings):
        if not isinstance(row, Mapping):
            raise TypeError(f"rudder[{index}]={row!r} is not understood: give None, False or a dictionary.")
        if unknown := set(row) - set(ROW_SETTINGS):
            raise ValueError(
                f"rudder[{index}] sets {sorted(unknown)}, but only {', '.join(ROW_SETTINGS)} can differ between rows."
            )
    return {name: [row.get(name, defaults[name]) for row in settings] for name in ROW_SETTINGS}
