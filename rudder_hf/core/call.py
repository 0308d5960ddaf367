"""What one call of `generate` asks for: `Call`, its arguments by name, and `CallSettings`, RUDDER's for its rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .settings import CALL_SETTINGS, ROW_SETTINGS, check_gate_range, check_setting, push_settings

Override = Any  # what a caller may pass as `rudder=`: a bool, a mapping, a `RudderConfig` or None
CONTINUOUS_BATCHING = (
    "RUDDER does not steer continuous batching (`generate_batch`, cache_implementation='paged'): it bypasses the "
    "generation loop. Use `generate` with another cache, pass rudder=False, or remove RUDDER from the model."
)
# Arguments whose names start like this carry images.
_IMAGE_ARGUMENTS = ("pixel_values", "image", "video", "mm_encoder_outputs", "high_res_pixel_values")
# Masks by which Kosmos-2 and Idefics say which positions belong to an image.
_IMAGE_MASKS = ("image_embeds_position_mask", "image_attention_mask")


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
        bound = inspect.signature(type(model).generate).bind_partial(model, *args, **kwargs)
        self.arguments: dict[str, Any] = {}  # all of them, by name
        for name, value in bound.arguments.items():
            is_rest = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            self.arguments |= value if is_rest else {name: value}
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
        self.cached_length = int(getattr(self.cache, "get_seq_length", lambda: 0)())
        given = (self.input_ids, self.inputs_embeds, self.arguments.get("inputs"))
        self.batch = next((len(value) for value in given if isinstance(value, Tensor)), 1)  # number of prompts
        # The length that `input_ids` starts with: without any, `generate` starts with one token.
        self.prompt_length = int(self.inputs_embeds is None) if self.input_ids is None else self.input_ids.shape[1]
        # The number of prompt positions that are still to be forwarded: a mask that is longer covers the cached ones.
        mask, embeds = self.arguments.get("attention_mask"), self.inputs_embeds
        only_new = embeds is None and isinstance(mask, Tensor) and mask.shape[1:2] != (self.prompt_length,)
        length = self.prompt_length if embeds is None else embeds.shape[1]
        self.remaining_prompt = length - (0 if only_new else self.cached_length)
        self.is_assisted = bool(self.option("prompt_lookup_num_tokens") or self.arguments.get("assistant_model"))
        self.has_images = any(
            value is not None and name.startswith(_IMAGE_ARGUMENTS) for name, value in self.arguments.items()
        )

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the call, its `generation_config` or the model's; None in the call itself unsets it."""
        value = self.arguments.get(name)
        if name not in self.arguments:
            for config in (self.arguments.get("generation_config"), getattr(self.model, "generation_config", None)):
                value = getattr(config, name, None) if value is None else value
        return default if value is None else value

    def rows_with_image(self, image_tokens: Sequence[int]) -> list[bool]:
        """Return for each prompt whether it contains an image, by placeholder tokens where the model has them."""
        for name in _IMAGE_MASKS:
            if isinstance(mask := self.arguments.get(name), Tensor):
                return [bool(row.any()) for row in mask]
        embedded = self.inputs_embeds is not None
        if self.input_ids is not None and image_tokens:
            placeholders = torch.tensor(image_tokens, device=self.input_ids.device)
            rows: list[bool] = torch.isin(self.input_ids, placeholders).any(dim=1).tolist()
            if any(rows):
                return [row and (self.has_images or embedded) for row in rows]
            # Images without any placeholder: the model takes them by another way than the prompt's ids.
            embedded = False
        # Embeddings alone do not show it, and most often are made because there is an image.
        return [self.has_images or embedded] * self.batch

    def refuse_unsupported(self) -> None:
        """Raise where stock transformers would lose the image or break the spans, with the reason."""
        if self.option("cache_implementation") == "paged":
            raise ValueError(CONTINUOUS_BATCHING)
        if self.has_images and self.option("prefill_chunk_size") is not None:
            raise ValueError(
                "transformers drops the images of a prompt when it is prefilled in chunks, so there is nothing for "
                "RUDDER to anchor to. Unset `prefill_chunk_size`."
            )
        if self.option("token_healing"):
            raise ValueError("RUDDER cannot tell prompt from answer under token_healing=True. Unset it.")
        if self.is_assisted and self.inputs_embeds is not None:
            raise ValueError(
                f"{type(self.model).__name__} is prompted with embeddings, and transformers then drops the candidates "
                "of assisted decoding and prompt lookup. Unset them."
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
    """Combine the model's settings, a `RudderConfig`, with those of a call on `batch` prompts.

    Only what the call brings is checked here: settings of a config are checked when they are set. `override` is None
    or True for the config's; False for strength 0; a `RudderConfig`; or a mapping of settings, whose row settings may
    be sequences with one value per prompt. It may name the installed `layer`, also from the end of all `layers`.
    """
    if override is None or isinstance(override, bool):
        given: dict[str, Any] = {"alpha_max": 0.0, "contrast": 0.0} if override is False else {}
    elif hasattr(override, "settings") or isinstance(override, Mapping):
        given = dict(override.settings() if hasattr(override, "settings") else override)
    else:
        raise TypeError(
            f"rudder={override!r} is not understood. Pass False (unsteered), or a dictionary of settings for this "
            "call, whose values may be lists with one value for each prompt."
        )
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


def _column(name: str, value: Any, batch: int) -> list[Any]:
    """Return one value per row, from a scalar or a sequence."""
    value = value.tolist() if hasattr(value, "tolist") else value
    column = list(value) if isinstance(value, (list, tuple)) else [value] * batch
    if len(column) != batch:
        raise ValueError(
            f"RUDDER setting `{name}` has {len(column)} values for a batch of {batch} prompts: "
            "give one number, or one for each prompt."
        )
    return column
