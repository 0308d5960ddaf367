"""Tiny checkpoints with random weights that vLLM can serve on a CPU, in the layout of published ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen2VLVideoProcessor,
)

from rudder_hf.benchmark.models import Shape, build_model
from tests.support.toy import toy_processor, words

# vLLM's attention on a CPU wants heads of 32 and more.
SERVED = Shape("served", hidden_size=128, intermediate_size=256, heads=4, layers=4, vocabulary=128)


def llava(folder: Path, seed: int = 0, initializer_range: float = 0.15) -> Path:
    """Write a LLaVA that answers at length, and differently to different images."""
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
            "out_hidden_size": SERVED.hidden_size,
            "fullatt_block_indexes": [1],
            "initializer_range": initializer_range,
        },
        text_config={
            "vocab_size": SERVED.vocabulary,
            "hidden_size": SERVED.hidden_size,
            "intermediate_size": SERVED.intermediate_size,
            "num_hidden_layers": SERVED.layers,
            "num_attention_heads": SERVED.heads,
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
    vocabulary = {word: index for index, word in enumerate([*_SPECIAL, *words()][: SERVED.vocabulary])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pixels = {"shortest_edge": 32 * 32, "longest_edge": 32 * 32}
    Qwen2_5_VLProcessor(
        Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=pixels),
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
            additional_special_tokens=_SPECIAL[3:7],
        ),
        Qwen2VLVideoProcessor(patch_size=patch, merge_size=2, size=pixels),
    ).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to serve.

    Attributes:
        write: Writes it to a folder, which it returns.
        placeholder: What stands for an image in a prompt.
    """

    write: Callable[[Path], Path]
    placeholder: str


CHECKPOINTS = {
    "llava": Checkpoint(llava, "<image>"),
    "qwen2_5_vl": Checkpoint(qwen2_5_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
}
