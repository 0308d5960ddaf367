"""Tiny checkpoints with random weights that vLLM can serve on a CPU, in the layout of published ones."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from rudder_hf.benchmark.shapes import Shape, build_model
from tests.toy import toy_processor

# vLLM's attention on a CPU wants heads of 32 and more.
SERVED = Shape("served", hidden_size=128, intermediate_size=256, heads=4, layers=4, vocabulary=128)


def llava(folder: Path, seed: int = 0, initializer_range: float = 0.15) -> Path:
    """Write a LLaVA that answers at length, and differently to different pictures."""
    model = build_model(SERVED, seed=seed, initializer_range=initializer_range)
    model.save_pretrained(folder)
    toy_processor().save_pretrained(folder)
    _publish(folder / "model.safetensors")
    return folder


def _publish(path: Path) -> None:
    """Rename weights to what llava-hf/llava-1.5-7b-hf has: vLLM's own class reads no other names."""
    weights = load_file(path)
    renamed = {}
    for name, tensor in weights.items():
        name = name.removeprefix("model.").replace("language_model.lm_head", "lm_head")
        if name.startswith("vision_tower.") and not name.startswith("vision_tower.vision_model."):
            name = name.replace("vision_tower.", "vision_tower.vision_model.", 1)
        if name.startswith("lm_head"):
            name = f"language_model.{name}"
        elif name.startswith("language_model.") and not name.startswith(("language_model.model.", "language_model.lm")):
            name = name.replace("language_model.", "language_model.model.", 1)
        renamed[name] = tensor.contiguous()
    save_file(renamed, path, metadata={"format": "pt"})
