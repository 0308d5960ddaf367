"""Checkpoints without pickle: tensors in safetensors, the rest in JSON, written so that a crash leaves the old one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn


def save(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, optimizer moments and `state` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v.detach().clone() for k, v in module.state_dict().items()}
    for index, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v).detach().clone() for k, v in entry.items()}
    partial = folder / "checkpoint.partial"
    save_file(tensors, partial)
    partial.replace(folder / "checkpoint.safetensors")
    partial.write_text(json.dumps(state, indent=2))
    partial.replace(folder / "checkpoint.json")


def load(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Restore what `save` wrote and return its state, or None where there is none."""
    if not (folder / "checkpoint.json").is_file():
        return None
    state: dict[str, Any] = json.loads((folder / "checkpoint.json").read_text())
    tensors = load_file(folder / "checkpoint.safetensors")
    module.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    moments: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            moments.setdefault(int(index), {})[name] = value
    whole = optimizer.state_dict()
    whole["state"] = moments
    optimizer.load_state_dict(whole)
    return state
