"""Answer prompts about images by greedy search, beam search or nucleus sampling, and measure how likely answers are.

Random numbers belong to the sample: `generate` draws from one stream for the whole batch, so that a row's text depends
on its neighbours. Here the noise of a token is a hash of the sample's seed, the step and the token, and the argmax of
warped log-probability plus Gumbel noise is an exact draw from the warped distribution. It does not depend on batch
size, order or earlier draws; and methods that are compared see the same noise, which narrows the paired intervals.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from ..core.backbones import find_backbone, image_token_ids
from ..hub.pipeline import encode_prompts
from ..methods import Generate
from .errors import InputError, check_least

# For these, one pass over prompt and answer differs from decoding (PaliGemma, for example, attends in both directions
# within the prefill), so the likelihood of their answers is not measured.
STEP_BY_STEP = ("paligemma", "kosmos-2", "kosmos-2.5", "minimax_m3_vl", "mistral_large4")
DECODING_NAMES = ("greedy", "beam", "nucleus")


@dataclass(frozen=True)
class Decoding:
    """How answers are written."""

    name: str  # "greedy", "beam" or "nucleus"
    max_new_tokens: int  # Longest answer
    num_beams: int = 5  # Of beam search
    top_p: float = 0.9  # Of nucleus sampling
    temperature: float = 1.0  # Of nucleus sampling

    def __post_init__(self) -> None:
        if self.name not in DECODING_NAMES:
            raise ValueError(f"There is no decoding {self.name!r}. Choose one of {', '.join(DECODING_NAMES)}.")
        check_least(self, max_new_tokens=1, num_beams=1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but has to be in (0, 1].")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but has to be above 0.")

    def record(self) -> dict[str, Any]:
        """Return the options that matter for this way of decoding."""
        mine = {"greedy": (), "beam": ("num_beams",), "nucleus": ("top_p", "temperature")}[self.name]
        return {name: value for name, value in asdict(self).items() if name in ("name", "max_new_tokens", *mine)}

    def options(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return the keyword arguments of `generate` for rows with these seeds.

        The model's own sampling options (Qwen2.5-VL: a temperature of 1e-6) are unset; all others, such as its
        repetition penalty, stay.
        """
        options: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": False,
            "num_beams": self.num_beams if self.name == "beam" else 1,
            "temperature": None,
            "top_p": None,
            "top_k": None,
        }
        if self.name == "nucleus":
            warpers = [TemperatureLogitsWarper(self.temperature)] if self.temperature != 1.0 else []
            warpers += [TopPLogitsWarper(self.top_p)] if self.top_p < 1.0 else []
            options["logits_processor"] = LogitsProcessorList([*warpers, SampleNoise(seeds)])
        return options


@dataclass(frozen=True)
class Answer:
    """One answer."""

    text: str  # Without special tokens and surrounding blanks
    ids: list[int]  # Its tokens, the end of sequence included if the model wrote it
    finished: bool  # Whether the model ended it by itself


def encode(model: PreTrainedModel, processor: Any, images: list[Image.Image], prompts: list[str]) -> dict[str, Any]:
    """Return inputs of `generate`, padded on the left, on the model's device."""
    return to_model(encode_prompts(processor, images, prompts), model)


def to_model(inputs: dict[str, Any], model: Any) -> dict[str, Any]:
    """Move inputs to a model's device, and pixels to its dtype."""
    return {
        name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in inputs.items()
        if hasattr(value, "is_floating_point")
    }


def synthetic_image(seed: int = 0, size: int = 336) -> Image.Image:
    """Return an image of coloured rectangles on a gradient, the same for the same seed."""
    source = numpy.random.default_rng(seed)
    ramp = numpy.linspace(0, 255, size, dtype=numpy.float32)
    pixels = numpy.stack(numpy.broadcast_arrays(ramp[:, None], ramp[None, :], ramp[::-1, None]), axis=-1).copy()
    for _ in range(6):
        top, left = source.integers(0, size * 3 // 4, 2)
        height, width = source.integers(size // 8, size // 3, 2)
        pixels[top : top + height, left : left + width] = source.integers(0, 256, 3)
    return Image.fromarray(pixels.astype(numpy.uint8))


def long_prompt(processor: Any, model: PreTrainedModel, tokens: int, batch: int = 1) -> dict[str, Any]:
    """Return synthetic images with a question, lengthened with filler words to about `tokens` positions."""
    question = "Please describe this image in detail."
    images = [synthetic_image(seed) for seed in range(batch)]
    inputs = encode(model, processor, images, [question] * batch)
    missing = tokens - int(inputs["input_ids"].shape[1])
    return inputs if missing <= 0 else encode(model, processor, images, [question + " and" * missing] * batch)


@torch.no_grad()
def answers(
    generate: Generate, model: PreTrainedModel, processor: Any, inputs: dict[str, Any], decoding: Decoding,
    seeds: Sequence[int], sample_ids: Sequence[str],
) -> list[Answer]:  # fmt: skip
    """Answer one batch of `encode` with a method's `generate`.

    Each row has a seed for sampling, and the id of its sample for methods with noise of their own.
    """
    written: Tensor = generate(**inputs, **decoding.options(seeds), sample_ids=list(sample_ids))
    new = without_prompt(written, inputs["input_ids"])
    ends = end_ids(model)
    tokenizer = getattr(processor, "tokenizer", processor)
    found = []
    for row in new.tolist():
        end = next((index for index, token in enumerate(row) if token in ends), None)
        ids = row if end is None else row[: end + 1]
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
        found.append(Answer(text, ids, end is not None))
    return found


def without_prompt(written: Tensor, prompt: Tensor) -> Tensor:
    """Return only the new tokens; models prompted with embeddings return nothing else."""
    length = prompt.shape[1]
    if written.shape[1] >= length and bool((written[:, :length] == prompt.to(written.device)).all()):
        return written[:, length:]
    return written


def end_ids(model: PreTrainedModel) -> set[int]:
    """Return the tokens that end an answer."""
    ends = model.generation_config.eos_token_id  # type: ignore[union-attr]
    if ends is None:
        ends = getattr(find_backbone(model).loop.generation_config, "eos_token_id", None)
    return set() if ends is None else set(ends) if isinstance(ends, (list, tuple)) else {int(ends)}


# How likely an answer is


def check_likelihood(model: PreTrainedModel) -> None:
    """Check that one forward over prompt and answer gives the likelihood of answers.

    Raises:
        InputError: The model is one of `STEP_BY_STEP`.
    """
    if model.config.model_type in STEP_BY_STEP:
        raise InputError(
            "Without annotations, settings are chosen by the likelihood of answers, which one forward over prompt and "
            f"answer does not give for a {model.config.model_type} model (nor for {', '.join(STEP_BY_STEP)}): it "
            "reads them in another way than in decoding. Choose on images with annotations."
        )


@torch.no_grad()
def log_likelihoods(model: PreTrainedModel, inputs: dict[str, Any], rows: Sequence[Sequence[int]]) -> list[float]:
    """Return the log-probability of each answer under the unsteered model, by one forward over prompt and answer.

    `rows` are the answers' tokens, one list for each row of the inputs. An empty answer has 0. The model must be none
    of `STEP_BY_STEP`. A placeholder that the model wrote would be taken for an image: the tokens after it are scored
    as if the prompt's last token stood in its place.
    """
    longest = max(len(row) for row in rows)
    if longest == 0:
        return [0.0] * len(rows)
    prompt = inputs["input_ids"]
    padding = int(prompt[0, -1])  # any token will do: it is masked
    answer = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=prompt.device)
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=prompt.device)
    placeholders = torch.tensor(image_token_ids(model), device=prompt.device)
    extended = with_answer(inputs, answer.masked_fill(torch.isin(answer, placeholders), padding), real)
    # The position before a token predicts it.
    logits = _forward(model, extended, longest + 1)[:, -longest - 1 : -1]
    sums = []
    for row in range(len(rows)):  # row by row: a batch's log-probabilities in float32 may be gigabytes
        chosen = torch.log_softmax(logits[row].float(), dim=-1).gather(1, answer[row, :, None])[:, 0]
        sums.append(float((chosen * real[row]).sum()))
    return sums


def with_answer(inputs: Mapping[str, Any], answer: Tensor, real: Tensor) -> dict[str, Any]:
    """Return inputs with answer tokens after the prompt; `real` is 0 where these are padding."""
    length, extra = inputs["input_ids"].shape[1], answer.shape[1]
    extended = dict(inputs)
    for name, value in inputs.items():
        if value.ndim < 2 or value.shape[:2] != inputs["input_ids"].shape or name.startswith("qformer"):
            continue
        if name == "input_ids":
            added = answer
        elif name == "attention_mask":
            added = real.to(value.dtype)
        elif value.ndim == 2:  # kinds of tokens: text
            added = torch.zeros_like(value[:, :1]).expand(-1, extra)
        else:  # which images a position sees: those that the last one saw
            added = value[:, -1:].expand(-1, extra, *value.shape[2:])
        extended[name] = torch.cat([value, added], dim=1)
    if "attention_mask" not in extended:
        ones = torch.ones(answer.shape[0], length, dtype=torch.long, device=answer.device)
        extended["attention_mask"] = torch.cat([ones, real], dim=1)
    return extended


def _forward(model: PreTrainedModel, extended: dict[str, Any], keep: int) -> Tensor:
    """Return the logits of the last `keep` positions, with positions and masks as `generate` sets them."""
    keeping = {"logits_to_keep": keep} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    if find_backbone(model).loop is not model:
        # Prompted with embeddings that its own forward makes.
        output = model(**extended, use_cache=False, **keeping)
    else:
        rest = {name: value for name, value in extended.items() if name != "input_ids"}
        prepared = model.prepare_inputs_for_generation(  # type: ignore[operator]
            extended["input_ids"], **rest, past_key_values=None, use_cache=False, is_first_iteration=True
        )
        output = model(**{**prepared, **keeping, "return_dict": True})
    logits: Tensor = output.logits
    return logits


# Noise of sampling


def sample_seed(seed: int, sample_id: str) -> int:
    """Return the seed of one sample: 63 bits of a hash of the run's seed and the sample's id."""
    digest = hashlib.sha256(f"{seed}\n{sample_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SampleNoise(LogitsProcessor):
    """Adds Gumbel noise to the log-probabilities of each row, so that the argmax is a draw from them.

    Args:
        seeds: One for each row.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self._start: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores of shape (rows, vocabulary) plus noise, in float64 where the device has it."""
        if scores.shape[0] != len(self.seeds):
            raise ValueError(f"There are {scores.shape[0]} rows but {len(self.seeds)} seeds.")
        if self._start is None:
            self._start = input_ids.shape[1]
        step = input_ids.shape[1] - self._start
        # Apple's GPUs have no float64: the noise is then made on the CPU, which gives the same numbers.
        device = torch.device("cpu") if scores.device.type == "mps" else scores.device
        noise = gumbel_noise(self.seeds, step, scores.shape[1], device)
        noisy = scores.to(device, torch.float64) + noise
        return noisy.float().to(scores.device) if device != scores.device else noisy


def gumbel_noise(seeds: Sequence[int], step: int, vocabulary: int, device: torch.device) -> Tensor:
    """Return Gumbel noise of shape (rows, vocabulary) that depends on seed, step and token only."""
    rows = _mix(torch.tensor([_signed(seed + _GOLDEN * (step + 1)) for seed in seeds], device=device))
    tokens = torch.arange(vocabulary, device=device)
    bits = _mix(rows[:, None] + tokens[None, :] * _signed(_GOLDEN))
    # 52 bits and a half: never 0, never 1.
    uniform = ((_shift(bits, 12)).to(torch.float64) + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


# The finaliser of SplitMix64: each bit of the input changes each bit of the output with probability one half.
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift int64 right without repeating the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _signed(_FACTORS[0])
    value = (value ^ _shift(value, 27)) * _signed(_FACTORS[1])
    return value ^ _shift(value, 31)
