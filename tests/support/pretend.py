"""Devices that do not exist: tensors that say that they are on one, and an error where an operator mixes two.

A machine without accelerators has one device. Here every tensor lies in its memory, but each block of memory is noted
as belonging to a pretended device. Code asks `tensor.device` and hears that one; `.to(device)` copies into a block of
that device, as a real transfer does; new tensors belong to the device that was asked for, results to that of their
operands. Operands from different devices raise, as the kernels of real devices do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class MixedDevicesError(RuntimeError):
    """An operator was given tensors of more than one device."""


def _is_getter(function: Any, name: str) -> bool:
    return getattr(function, "__self__", None) is getattr(Tensor, name) and function.__name__ == "__get__"


class PretendedDevices(TorchFunctionMode):
    """Within this context tensors are on pretended devices; outside of it all of them are on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, torch.device] = {}
        # Blocks are kept alive, so that no address is used again under an old note.
        self._kept: list[Any] = []

    def place(self, tensor: Tensor) -> torch.device:
        """The pretended device of a tensor."""
        return self._places.get(self._block(tensor), CPU)

    @staticmethod
    def _block(tensor: Tensor) -> int:
        return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()

    def _note(self, tensor: Tensor, device: torch.device) -> None:
        if block := self._block(tensor):
            self._places[block] = device
            self._kept.append(tensor.untyped_storage())

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_getter(function, "device"):
            return self.place(args[0])
        if _is_getter(function, "is_cuda"):
            return self.place(args[0]).type == "cuda"
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        wanted, args, kwargs = self._without_device(function, args, kwargs)
        if function in (Tensor.to, Tensor.cpu, Tensor.cuda):
            source = self.place(args[0])
            return self._moved(function(*args, **kwargs), args[0], source if wanted is None else wanted)
        if function is not Tensor.copy_:
            self._check(function, tensors)
        blocks = {self._block(tensor) for tensor in tensors}
        device = wanted or self._operating_place(tensors)
        result = function(*args, **kwargs)

        def note(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and self._block(leaf) not in blocks:
                self._note(leaf, device)
            return leaf

        return tree_map(note, result)

    def _operands(self, tensors: list[Tensor]) -> list[torch.device]:
        """Where the tensors are that decide where an operator runs: not the empty ones, nor numbers on the CPU."""
        places = [(self.place(one), one.dim()) for one in tensors if one.numel()]
        return [place for place, dimensions in places if dimensions or place != CPU]

    def _operating_place(self, tensors: list[Tensor]) -> torch.device:
        return next(iter(self._operands(tensors)), CPU)

    def _check(self, function: Callable[..., Any], tensors: list[Tensor]) -> None:
        if len(places := set(self._operands(tensors))) > 1:
            raise MixedDevicesError(f"{getattr(function, '__name__', function)} was given tensors on {places}")

    def _moved(self, result: Tensor, source: Tensor, device: torch.device) -> Tensor:
        """A tensor on a device: itself if it is there already, else a copy."""
        if self._block(result) == self._block(source):
            if self.place(source) == device:
                return result
            result = result.clone()
        self._note(result, device)
        return result

    def _without_device(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
        """The device that a call asks for, and its arguments with the CPU in that place."""
        found: list[torch.device] = []
        if function is Tensor.cpu:
            return CPU, args, kwargs
        if kwargs.get("device") is not None:
            found.append(_device(kwargs["device"]))
            kwargs["device"] = CPU
        moving = function in (Tensor.to, Tensor.cuda)
        changed = []
        for index, value in enumerate(args):
            by_name = moving and index == 1 and isinstance(value, (str, int)) and not isinstance(value, bool)
            if isinstance(value, torch.device) or by_name:
                found.append(_device(value))
                value = CPU
            elif moving and index == 1 and isinstance(value, Tensor):
                found.append(self.place(value))
            changed.append(value)
        return (found[0] if found else None), tuple(changed), kwargs


def _device(value: Any) -> torch.device:
    return torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
