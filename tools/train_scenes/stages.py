"""One stage of training: a loop over numbered steps with checkpoints, a log and the time left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

REPORT_EVERY = 20
SAVE_EVERY = 100
WEIGHT_DECAY = 0.02
# In bfloat16 a step takes a third of the time on a CPU that multiplies in it, and three times as long on any other.
_CPU = torch.cpu.get_capabilities()
BFLOAT16 = bool(_CPU.get("amx_bf16") or _CPU.get("avx512_bf16"))
MUON_SHARE = 4.0  # Muon's learning rate as a share of the stage's


@dataclass
class Stage:
    """What a stage trains, for how many steps, and how a step's losses are computed from its number."""

    name: str
    module: nn.Module  # everything that a checkpoint holds
    parameters: list[nn.Parameter]
    losses: Callable[[int], dict[str, Tensor]]
    steps: int
    rate: float
    warmup: int
    decay: int
    matrices: set[nn.Parameter] = field(default_factory=set)  # those that Muon steps
    slow: dict[nn.Parameter, float] = field(default_factory=dict)  # those with a share of the rate


def rate_factor(step: int, total: int, warmup: int, decay: int) -> float:
    """Linear warm-up, a constant middle, and a linear decay to 2 % over the last `decay` steps."""
    return min((step + 1) / warmup, 1.0, max((total - step) / decay, 0.02))


def make_optimizers(stage: Stage) -> list[torch.optim.Optimizer]:
    """Muon for the stage's matrices; AdamW for the others, with weight decay on tables and without on vectors.

    `share` in a group is its learning rate as a share of the stage's.
    """
    matrices = [p for p in stage.parameters if p in stage.matrices]
    others = [p for p in stage.parameters if p not in stage.matrices]
    groups: list[dict[str, Any]] = []
    for share in sorted({stage.slow.get(p, 1.0) for p in others}):
        alike = [p for p in others if stage.slow.get(p, 1.0) == share]
        groups.append({"params": [p for p in alike if p.ndim >= 2], "weight_decay": WEIGHT_DECAY, "share": share})
        groups.append({"params": [p for p in alike if p.ndim < 2], "weight_decay": 0.0, "share": share})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([group for group in groups if group["params"]], lr=stage.rate, betas=(0.9, 0.98))
    ]
    if matrices:
        # Weight decay is times the learning rate, so that it is divided by the share.
        group = {"params": matrices, "share": MUON_SHARE, "weight_decay": WEIGHT_DECAY / MUON_SHARE}
        optimizers.append(torch.optim.Muon([group], lr=stage.rate, adjust_lr_fn="match_rms_adamw"))
    return optimizers


class Progress:
    """One line of progress with the time left, and the same as a line of JSON."""

    def __init__(self, log: Path, stage: Stage, first: int, seconds: float) -> None:
        self.log, self.stage, self.first = log, stage, first
        self.before, self.start = seconds, time.monotonic()
        self.sums: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Time spent on this stage, earlier runs included."""
        return self.before + time.monotonic() - self.start

    def add(self, step: int, losses: dict[str, Tensor]) -> None:
        """Take note of the losses of a step and report now and then."""
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.detach()) / REPORT_EVERY
        if step % REPORT_EVERY:
            return
        left = (time.monotonic() - self.start) / (step - self.first) * (self.stage.steps - step)
        text = " ".join(f"{k} {v:.3f}" for k, v in self.sums.items())
        print(f"{self.stage.name} {step}/{self.stage.steps} {text} | {left / 60:.1f} min left", flush=True)
        row = {"stage": self.stage.name, "step": step, "seconds": round(self.seconds, 1)}
        with self.log.open("a") as file:
            file.write(json.dumps({**row, **{k: round(v, 5) for k, v in self.sums.items()}}) + "\n")
        self.sums = {}


def save_checkpoint(
    folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], state: dict[str, Any]
) -> None:
    """Write weights, moments of the optimizers and `state`: no pickle, and a crash leaves the old checkpoint."""
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


def load_checkpoint(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any] | None:
    """Restore what `save_checkpoint` wrote and return its state, or None where there is none."""
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


def run_stage(stage: Stage, out: Path) -> float:
    """Train a stage, from its checkpoint if there is one; the seconds it took."""
    optimizers = make_optimizers(stage)
    folder = out / "checkpoints" / stage.name
    state = load_checkpoint(folder, stage.module, optimizers) or {"step": 0, "seconds": 0.0}
    progress = Progress(out / "training_log.jsonl", stage, int(state["step"]), float(state["seconds"]))
    for step in range(int(state["step"]), stage.steps):
        rate = stage.rate * rate_factor(step, stage.steps, stage.warmup, stage.decay)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
        with torch.autocast("cpu", torch.bfloat16, enabled=BFLOAT16):
            losses = stage.losses(step)
        torch.stack([v.float() for k, v in losses.items() if not k.startswith("_")]).sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(stage.parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        progress.add(step + 1, losses)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == stage.steps:
            state = {"step": step + 1, "seconds": progress.seconds}
            save_checkpoint(folder, stage.module, optimizers, state)
    return float(state["seconds"])
