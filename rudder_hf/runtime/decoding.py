"""Greedy search, beam search and nucleus sampling, the last with random numbers that belong to the sample.

`generate` draws from one stream for the whole batch, so that a row's text depends on its neighbours. Here the noise of
a token is a hash of the sample's seed, the step and the token, and the argmax of warped log-probability plus Gumbel
noise is an exact draw from the warped distribution. It does not depend on batch size, order or earlier draws; and
methods that are compared see the same noise, which narrows the paired intervals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

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
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, but has to be at least 1.")
        if self.num_beams < 1:
            raise ValueError(f"num_beams is {self.num_beams}, but has to be at least 1.")
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
