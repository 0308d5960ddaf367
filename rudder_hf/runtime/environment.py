"""What a result was measured with: versions, machine, accelerators; and when."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "torchao",
    "huggingface_hub",
    "safetensors",
    "tokenizers",
    "numpy",
    "pillow",
)


def timestamp() -> str:
    """The time now, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
    """Versions of Python, of this package and of those it works with; None for what is not installed."""
    from .. import __version__

    found: dict[str, str | None] = {"python": platform.python_version(), "rudder_hf": __version__}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> dict[str, Any]:
    """The machine: system, CPU, threads that torch uses, accelerators."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": usable,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": accelerators(),
    }


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def accelerators() -> list[str]:
    """Names of the accelerators that torch can use."""
    import torch

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    return [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
