"""What a result was measured with (versions, code, files of a model, machine, time), and which process this is."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.version import __version__

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


CODE = "rudder_hf_code"
"""The entry of `versions` that holds a digest of the code that results depend on."""
_MEASURED = ("core", "methods", "metrics", "scenes")
_WHOLE_FILE = 64 << 20  # bytes up to which a weight file is hashed whole


def timestamp() -> str:
    """Return the time now, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Return the versions of Python, of this package with a digest of its code, and of its dependencies."""
    found: dict[str, str | None] = {"python": platform.python_version(), "rudder_hf": __version__}
    found[CODE] = code_digest(*_MEASURED)
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def code_digest(*folders: str) -> str:
    """Return a digest of the Python sources in folders of this package, the same on every system.

    Args:
        folders: Paths inside the package, such as "core" or "integrations/vllm".

    Raises:
        FileNotFoundError: There is no Python source in one of them.
    """
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in sorted(folders):
        sources = {path.relative_to(package).as_posix(): path for path in (package / folder).rglob("*.py")}
        if not sources:
            raise FileNotFoundError(f"There is no Python source in {package / folder}.")
        for name, path in sorted(sources.items()):
            # Text mode makes "\n" of every line ending.
            text = path.read_text(encoding="utf-8")
            digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()[:16]


def files_digest(folder: Path) -> str:
    """Return a hash of the weights and configs in a folder, as a calibration records it for its base model."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix in (".safetensors", ".json", ".bin") and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}\n{size}\n".encode())
            with path.open("rb") as file:
                # Of large weight files only the head, which has names and shapes, and the end are read.
                digest.update(file.read(_WHOLE_FILE))
                if size > 2 * _WHOLE_FILE:
                    file.seek(-(1 << 20), 2)
                    digest.update(file.read())
    return f"files-sha256:{digest.hexdigest()[:16]}"


def hardware() -> dict[str, Any]:
    """Describe the machine: system, CPU, threads that torch uses, accelerators."""
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": accelerators(),
    }


def cpu_name() -> str:
    """Return the processor's name, if the system knows it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def accelerators() -> list[str]:
    """Return the names of the accelerators that torch can use."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if kind else 0
    return [torch.cuda.get_device_name(i) if torch.cuda.is_available() else f"{kind}:{i}" for i in range(count)]


@dataclass(frozen=True)
class Process:
    """One of the processes that share a run."""

    rank: int = 0  # Its number, from 0 on, over all machines; 0 is the one that prints
    count: int = 1  # How many there are
    local_rank: int = 0  # Its number on this machine, which picks its accelerator


def this_process(variables: Mapping[str, str] = os.environ) -> Process:
    """Read RANK, WORLD_SIZE and LOCAL_RANK, which `accelerate launch` and `torchrun` set.

    The processes exchange nothing but files in the results folder, so no process group is needed.

    Raises:
        ValueError: The variables contradict each other.
    """
    rank_text = variables.get("RANK", "0")
    texts = (rank_text, variables.get("WORLD_SIZE", "1"), variables.get("LOCAL_RANK") or rank_text)
    try:
        rank, count, local_rank = map(int, texts)
    except ValueError:
        given = ", ".join(texts)
        raise ValueError(f"RANK, WORLD_SIZE and LOCAL_RANK of the environment ({given}) have to be numbers.") from None
    if not 0 <= rank < count:
        raise ValueError(f"The environment says RANK={rank} of WORLD_SIZE={count}: ranks go from 0 to {count - 1}.")
    return Process(rank, count, local_rank)


def process_device(device: str, process: Process) -> str:
    """Return the device of this process: with several on a machine, each takes the accelerator of its local rank."""
    if process.count == 1 or ":" in device or device == "cpu":
        return device
    return f"{device}:{process.local_rank}"
