"""Tiny checkpoints with random weights that vLLM can serve on a CPU, in the layout of published ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen2VLVideoProcessor,
)

from tests.support.toy import VOCABULARY, toy_model, toy_processor, word_tokenizer, words

# Folders inside of the LLaVA's: a LoRA adapter, and the model that it is merged into.
ADAPTER, MERGED = "adapter", "merged"
WIDTH = 128  # with four heads: vLLM's attention on a CPU wants heads of 32 and more


def llava(folder: Path, seed: int = 0, initializer_range: float = 0.15) -> Path:
    """Write a LLaVA that answers at length, and differently to different images."""
    model = toy_model(seed, hidden_size=WIDTH, initializer_range=initializer_range)
    model.save_pretrained(folder)
    toy_processor().save_pretrained(folder)
    _write_adapter(folder)
    _publish(folder / "model.safetensors")
    return folder


def _write_adapter(folder: Path, rank: int = 8, scale: float = 4.0) -> None:
    """Write a LoRA adapter, as peft does, and a copy of the model that it is merged into."""
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(7)
    adapter = {}
    for name in [
        name for name in weights if name.endswith(("q_proj.weight", "v_proj.weight")) and "vision" not in name
    ]:
        outputs, inputs = weights[name].shape
        down, up = (torch.randn(shape, generator=draw) * 0.1 for shape in ((rank, inputs), (outputs, rank)))
        weights[name] += scale * up @ down
        module = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    shutil.copytree(folder, folder / MERGED, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, folder / MERGED / "model.safetensors", metadata={"format": "pt"})
    (folder / ADAPTER).mkdir()
    save_file(adapter, folder / ADAPTER / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": scale * rank, "target_modules": ["q_proj", "v_proj"]}
    (folder / ADAPTER / "adapter_config.json").write_text(json.dumps(config))


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
        elif name.startswith("language_model.") and not name.startswith(
            ("language_model.model.", "language_model.lm")
        ):
            name = name.replace("language_model.", "language_model.model.", 1)
        renamed[name] = tensor.contiguous()
    save_file(renamed, path, metadata={"format": "pt"})


_SPECIAL = ["<pad>", "<s>", "</s>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<unk>"]


def qwen2_5_vl(folder: Path, seed: int = 0, initializer_range: float = 0.15) -> Path:
    """Write a Qwen2.5-VL of about the same size."""
    patch = 4
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 2,
            "patch_size": patch,
            "window_size": 16,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [1],
            "initializer_range": initializer_range,
        },
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "initializer_range": initializer_range,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        image_token_id=3,
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    pixels = {"shortest_edge": 32 * 32, "longest_edge": 32 * 32}
    Qwen2_5_VLProcessor(
        Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=pixels),
        word_tokenizer([*_SPECIAL, *words()][:VOCABULARY], _SPECIAL[3:7]),
        Qwen2VLVideoProcessor(patch_size=patch, merge_size=2, size=pixels),
    ).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to serve."""

    write: Callable[[Path], Path]  # writes it to a folder, which it returns
    placeholder: str  # what stands for an image in a prompt


CHECKPOINTS = {
    "llava": Checkpoint(llava, "<image>"),
    "qwen2_5_vl": Checkpoint(qwen2_5_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
}
