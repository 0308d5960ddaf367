"""`Prompt`: prompts that a model has read, and the rows that go on from copies of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from ..core.hooks import STATE_KEY
from ..runtime.answers import STEP_BY_STEP

if TYPE_CHECKING:
    from .decoding import SettingsState

# Arguments with images start like this; they are needed for the prefill alone, but for those that are kept.
_IMAGES = ("pixel_", "image_", "video_", "images_", "videos_", "patches_", "mm_encoder", "num_local_", "high_res_")
_KEPT = ("image_attention_mask", "image_embeds_position_mask", "image_hidden_states")
# Positions that a cache makes room for at a time.
_ROOM = 32


class Prompt:
    """A batch of prompts in a key-value cache, with the arguments that `generate` keeps from forward to forward.

    Args:
        model: The model that runs the token loop.
        input_ids: All ids so far, (rows, length); the last of them may not be forwarded yet.
        kwargs: What `generate` would pass to the next forward, the cache included.
        logits: Of the last forwarded position, float32, (rows, vocabulary).
    """

    def __init__(self, model: Any, input_ids: Tensor, kwargs: dict[str, Any], logits: Tensor) -> None:
        self.model = model
        self.input_ids = input_ids
        self.kwargs = kwargs
        self.logits = logits

    def rows(self, rows: Tensor) -> Prompt:
        """A copy with the given rows, repetitions allowed; the original stays as it is."""
        clone = Prompt(self.model, self.input_ids, dict(self.kwargs), self.logits)
        cache = clone.kwargs["past_key_values"] = copy.copy(self.kwargs["past_key_values"])
        # Layers replace their tensors when rows are picked and when they grow, so copies may share them.
        cache.layers = [_shallow_copy(layer) for layer in cache.layers]
        clone.keep(rows)
        # From here on the rows have tensors of their own, which may be written to in place.
        cache.layers = [RoomyLayer.of(layer) for layer in cache.layers]
        return clone

    def keep(self, rows: Tensor) -> None:
        """Go on with the given rows only."""
        batch = self.input_ids.shape[0]
        self.kwargs["past_key_values"].reorder_cache(rows)
        for name, value in self.kwargs.items():
            if not isinstance(value, Tensor):
                continue
            # Multimodal positions come as (3, rows, positions).
            dimension = 1 if name == "position_ids" and value.dim() == 3 else 0
            if value.dim() > dimension and value.shape[dimension] == batch:
                self.kwargs[name] = value.index_select(dimension, rows.to(value.device))
        self.input_ids = self.input_ids[rows]
        self.logits = self.logits[:0]

    def append(self, tokens: Tensor) -> None:
        """Add one token to each row; it is forwarded by the next `step`."""
        self.input_ids = torch.cat([self.input_ids, tokens[:, None]], dim=1)

    def step(self, state: SettingsState | None) -> Tensor:
        """Forward the newest token of each row and return its logits; without a state it is not steered."""
        self._grow(1)
        return self._forward(state, 1)[:, -1].float()

    def repeat_last(self, state: SettingsState) -> Tensor:
        """Forward the last prompt position again, and return its logits.

        Raises:
            ValueError: The cache cannot forget a position.
        """
        cache = self.kwargs["past_key_values"]
        length = cache.get_seq_length()
        # Layers of another length hold something else than positions: images that are attended to (Mllama).
        lengths = {layer.get_seq_length() for layer in cache.layers if hasattr(layer, "get_seq_length")}
        if not cache.is_croppable or not lengths <= {0, length}:
            raise ValueError(
                "steer_first_token=True cannot be calibrated for this model: its cache cannot forget the last prompt "
                "position (recurrent or sliding-window layers). Leave it off."
            )
        cache.crop(-1)
        # A prompt given as embeddings has no ids to look its last position up by.
        return self._forward(state, 1, first=self.kwargs.get("inputs_embeds") is not None)[:, -1].float()

    def read_on(self, tokens: Tensor) -> Tensor:
        """Forward given tokens unsteered and return the logits at each of them, (rows, tokens, vocabulary)."""
        rows, count = tokens.shape
        if count == 0:
            return self.logits.new_empty(rows, 0, self.logits.shape[-1])
        if getattr(self.model.config, "model_type", "") in STEP_BY_STEP:
            steps = []
            for column in tokens.T:
                self.append(column)
                steps.append(self.step(None))
            return torch.stack(steps, dim=1)
        self.input_ids = torch.cat([self.input_ids, tokens], dim=1)
        self._grow(count)
        if "logits_to_keep" in self.kwargs:
            self.kwargs["logits_to_keep"] = count
        return self._forward(None, count)[:, -count:]

    def _grow(self, count: int) -> None:
        """Let masks and positions cover `count` more tokens, one at a time as decoding does."""
        for _ in range(count):
            self.kwargs = self.model._update_model_kwargs_for_generation(
                _Unchanged(self.kwargs), self.kwargs, is_encoder_decoder=False
            )

    def _forward(self, state: SettingsState | None, count: int, first: bool = False) -> Tensor:
        """Forward the last `count` positions from the cache and return their logits."""
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids, next_sequence_length=count, is_first_iteration=first, **self.kwargs
        )
        logits: Tensor = _run(self.model, inputs, state).logits
        return logits


def read_prompt(
    model: Any, state: SettingsState, input_ids: Tensor, kwargs: dict[str, Any], repeated: bool = False
) -> Prompt:
    """Prefill: forward whole prompts, unsteered, while the state pools what it needs.

    Args:
        model: The model that runs the token loop.
        state: Reads the target layer.
        input_ids: The prompts.
        kwargs: What `generate` prepared.
        repeated: Whether the last position will be forwarded again, so that windowed caches must keep it apart.
    """
    if repeated:
        kwargs["past_key_values"].activate_past_recording()
    embeds = kwargs.get("inputs_embeds")
    positions = input_ids.shape[1] if embeds is None else embeds.shape[1]
    state.read(input_ids, kwargs.get("attention_mask"), positions)
    output = _run(model, model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **kwargs), state)
    kept = {name: value for name, value in kwargs.items() if name in _KEPT or not name.startswith(_IMAGES)}
    later = model._update_model_kwargs_for_generation(output, dict(kwargs), is_encoder_decoder=False)
    kept |= {name: value for name, value in later.items() if name not in kwargs}
    kept["past_key_values"] = output.past_key_values
    return Prompt(model, input_ids, kept, output.logits[:, -1].float())


def _run(model: Any, inputs: dict[str, Any], state: SettingsState | None) -> Any:
    """One forward, which has to pass through the state's hook if there is a state."""
    if state is None:
        return model(**inputs, return_dict=True)
    state.fired = False
    output = model(**inputs, **{STATE_KEY: state}, return_dict=True)
    if not state.fired:
        raise RuntimeError("RUDDER's hook did not run, so the rows would be unsteered: use the model uncompiled.")
    return output


class _Unchanged:
    """Stands for the output of a forward whose extras (Idefics' image states) are among the arguments already."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self._kwargs = kwargs
        self.get = kwargs.get

    def __contains__(self, name: str) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return self._kwargs.get(name)


def _shallow_copy(layer: Any) -> Any:
    """A copy of a cache's layer that shares tensors but no container with it."""
    clone = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, (list, dict)):
            setattr(clone, name, copy.copy(value))
    return clone


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that keeps room for positions to come; its keys and values are views of what is filled.

    The stock layer concatenates, which copies the whole cache for every token: with hundreds of rows on a small model
    that was the largest single cost.
    """

    keys: Tensor
    values: Tensor
    _keys_room: Tensor | None = None
    _values_room: Tensor | None = None

    @classmethod
    def of(cls, layer: Any) -> Any:
        """The layer with room, sharing its tensors; layers of any other kind stay as they are."""
        if type(layer) is not DynamicLayer or not layer.is_initialized or layer.keys.dim() != 4:
            return layer
        clone = cls.__new__(cls)
        clone.__dict__.update(vars(layer))
        return clone

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add positions, (rows, heads, positions, size) each, and return everything so far."""
        self._keys_room, self.keys = _added(self._keys_room, self.keys, key_states)
        self._values_room, self.values = _added(self._values_room, self.values, value_states)
        return self.keys, self.values


def _added(room: Tensor | None, filled: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """The room, a larger one if needed, and the part of it that is filled now."""
    length, total = filled.shape[-2], filled.shape[-2] + new.shape[-2]
    # Picking rows makes tensors of their own; cropping leaves a view of the room.
    if room is None or filled.data_ptr() != room.data_ptr() or total > room.shape[-2]:
        room = filled.new_empty(*filled.shape[:-2], total + _ROOM, filled.shape[-1])
        room[..., :length, :] = filled
    room[..., length:total, :] = new
    return room, room[..., :total, :]
