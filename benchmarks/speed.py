"""What RUDDER costs on random LLaVAs of two shapes, so that nothing is downloaded.

    OMP_NUM_THREADS=1 python benchmarks/speed.py --new-tokens 32 --rounds 16 --out benchmarks/speed-cpu.json

It prints the table in Markdown.
RUDDER acts in one layer, whatever the number of layers. `wide` has the layers of LLaVA-1.5-7B but only two of them, so
that its ratio is a lower bound for the 32-layer model (it needs 2 GB); `deep` has as many layers as that model but
narrow ones, so that launching operators is all that takes time: the hard case for anything that adds operators.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from rudder_hf.benchmark import BenchmarkReport, CostSettings, run_benchmark
from rudder_hf.benchmark.report import Case, check_new_file, cost_table, notes
from rudder_hf.runtime.models import LoadedModel
from rudder_hf.runtime.report import ProgressBar

PAD, BOS, EOS, IMAGE = 0, 1, 2, 3
FIRST_WORD = 4
IMAGE_SIZE, PATCH_SIZE = 32, 8
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2


@dataclass(frozen=True)
class Shape:
    """Size of a random LLaVA's decoder."""

    hidden_size: int
    intermediate_size: int
    heads: int
    layers: int
    vocabulary: int = 1024  # small, so that the language-model head does not hide the cost of the layers


SHAPES = {
    "wide": Shape(hidden_size=4096, intermediate_size=11008, heads=32, layers=2),
    "deep": Shape(hidden_size=128, intermediate_size=344, heads=4, layers=32),
    "tiny": Shape(hidden_size=32, intermediate_size=64, heads=4, layers=4, vocabulary=128),
}


def build_model(shape: Shape, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """Build a LLaVA of the given shape with a small CLIP tower."""
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        max_position_embeddings=4096, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=IMAGE_TOKENS
    )
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(config).to(dtype).eval()
    model.generation_config.pad_token_id = PAD
    return model


def random_prompt(model: PreTrainedModel, tokens: int, seed: int) -> dict[str, Any]:
    """Return inputs of `generate` with a random image and random words, `tokens` positions in all.

    Raises:
        SystemExit: There is no room for the image in so few tokens.
    """
    words = tokens - 1 - IMAGE_TOKENS
    if words < 1:
        raise SystemExit(
            f"--prompt-tokens is {tokens}, which has no room for the image; give at least {IMAGE_TOKENS + 2}."
        )
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(FIRST_WORD, model.config.get_text_config().vocab_size, (1, words), generator=generator)
    input_ids = torch.cat([torch.tensor([[BOS] + [IMAGE] * IMAGE_TOKENS]), text], dim=1).to(model.device)
    pixels = torch.randn(1, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator).to(model.device, model.dtype)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "pixel_values": pixels}


def measure(name: str, settings: CostSettings, given: argparse.Namespace) -> BenchmarkReport:
    """Measure vanilla and both forms of RUDDER on one shape."""
    model = build_model(SHAPES[name], getattr(torch, given.dtype), settings.seed).to(given.device)
    inputs = random_prompt(model, given.prompt_tokens, settings.seed)
    with ProgressBar() as bar:
        return run_benchmark(LoadedModel(name, model, None, {}, "random"), settings, inputs=inputs, progress=bar)


def main() -> None:
    """Measure the shapes one after the other and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=[*SHAPES], nargs="+", default=["wide", "deep"], help="tiny: to try it")
    parser.add_argument("--new-tokens", type=int, default=64, help="length of each answer")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="length of the prompt, image included")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="new .json file")
    given = parser.parse_args()
    check_new_file(given.out)
    settings = CostSettings(given.new_tokens, given.rounds, warmup=2, seed=given.seed)
    reports = {name: measure(name, settings, given) for name in given.shape}
    cases: list[Case] = []
    for name, each in reports.items():
        cases += [replace(case, model={**case.model, "shape": asdict(SHAPES[name])}) for case in each.cases]
    report = replace(reports[given.shape[0]], cases=cases)
    report.save(given.out)
    print(cost_table(report).markdown())
    print("\n".join(notes(report)))
    print(f"Written to {given.out}")


if __name__ == "__main__":
    main()
