"""`RoomyLayer`: a cache's layer that writes a step where there is room for it.

The stock layer concatenates, which copies the whole cache for every token: in a profile of hundreds of rows on a small
model that was the largest single cost.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM = 32
"""Positions that are made room for at a time."""


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that keeps room for positions to come; its keys and values are views of what is filled."""

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
        room = filled.new_empty(*filled.shape[:-2], total + ROOM, filled.shape[-1])
        room[..., :length, :] = filled
    room[..., length:total, :] = new
    return room, room[..., :total, :]
