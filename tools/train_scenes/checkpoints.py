"""Checkpoints without pickle: tensors in safetensors, the rest in JSON, written so that a crash leaves the old one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn


def save(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], state: dict[str, Any]) -> None:
    """Write weights, moments of the optimizers and `state` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v.detach().clone() for k, v in module.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, entry in optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{number}.{index}.{k}": torch.as_tensor(v).detach().clone() for k, v in entry.items()
            }
    partial = folder / "checkpoint.partial"
    save_file(tensors, partial)
    partial.replace(folder / "checkpoint.safetensors")
    partial.write_text(json.dumps(state, indent=2))
    partial.replace(folder / "checkpoint.json")


def load(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any] | None:
    """Restore what `save` wrote and return its state, or None where there is none."""
    if not (folder / "checkpoint.json").is_file():
        return None
    state: dict[str, Any] = json.loads((folder / "checkpoint.json").read_text())
    tensors = load_file(folder / "checkpoint.safetensors")
    module.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    moments: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, index, name = key.split(".", 3)
            moments[int(number)].setdefault(int(index), {})[name] = value
    for optimizer, held in zip(optimizers, moments, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": held})
    return state
