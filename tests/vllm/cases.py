"""Requests of different lengths and settings, and what plain transformers answers to them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import RudderConfig, attach
from rudder_hf.core.settings import ROW_SETTINGS

# A request's `rudder` argument, in turn. None says nothing, so that the engine's settings hold.
OVERRIDES: tuple[Any, ...] = (
    None,
    False,
    {"alpha_max": 9.0},
    {"alpha_max": 40.0, "k": 1.0},
    False,
    {"mode": "add", "alpha_max": 15.0},
    {"steer_first_token": True},
    {"alpha_max": 30.0, "norm_cap": 12.0, "g_min": 0.3, "g_max": 0.7},
)


@dataclass(frozen=True)
class Case:
    """One request."""

    text: str  # its prompt; with an image it has the placeholder
    image_seed: int | None  # None for text alone
    length: int  # number of tokens to answer with
    rudder: Any  # its settings

    @property
    def image(self) -> Image.Image | None:
        """Its image."""
        return None if self.image_seed is None else make_image(self.image_seed)

    @property
    def says_no(self) -> bool:
        """Whether it is to be answered as without RUDDER."""
        forced = isinstance(self.rudder, dict) and self.rudder.get("force", False)
        return self.rudder is False or (self.image_seed is None and not forced)


def make_image(seed: int) -> Image.Image:
    """Coloured noise on a coarse grid, so that images differ by more than their grain."""
    rows = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(rows).resize((32, 32), Image.Resampling.NEAREST)


def make_cases(
    words: Sequence[str], count: int = 26, seed: int = 0, placeholder: str = "<image>", images: int | None = None
) -> list[Case]:
    """Cases in which text alone, every override, and short and long prompts and answers occur.

    With a number of `images`, so many alternate, and prompts with the same image begin with the same words: a prompt
    that was read before is found in the prefix cache with its image.
    """
    draw = random.Random(seed)
    openings = [" ".join(draw.choices(words, k=40)) + " " for _ in range(images or 0)]
    cases = []
    for number in range(count):
        text = " ".join(draw.choices(words, k=draw.randint(2, 100)))
        if images is not None:
            text = openings[number % images] + text
        text_only = number % 9 == 5
        override = {"force": True, "alpha_max": 24.0} if number == 14 else OVERRIDES[number % len(OVERRIDES)]
        cases.append(
            Case(
                text if text_only else f"{placeholder} {text}",
                None if text_only else number if images is None else number % images,
                draw.randint(4, 28),
                override,
            )
        )
    return cases


def second_turns(cases: Sequence[Case], answers: Sequence[str], seed: int = 1) -> list[Case]:
    """Follow-ups: each conversation so far, the answer included, goes on with a few words and other settings."""
    draw = random.Random(seed)
    words = " ".join(answer for answer in answers if answer).split()
    turns = []
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        text = f"{case.text} {answer} {' '.join(draw.choices(words, k=6))}"
        turns.append(Case(text, case.image_seed, 24, OVERRIDES[(number + 3) % len(OVERRIDES)]))
    return turns


class Plain:
    """Plain transformers with RUDDER.

    Args:
        folder: The checkpoint.
        config: The settings that hold where a request says nothing.
    """

    def __init__(self, folder: Path, config: RudderConfig) -> None:
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.padding_side = "left"
        self.config = config

    def answers(self, cases: Sequence[Case]) -> list[list[int]]:
        """The tokens that follow each prompt.

        Requests that differ in the strength of steering alone share a batch, whose rows are as if alone.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, case in enumerate(cases):
            shared = _settings(case.rudder)
            key = (case.image_seed is None, *(shared.get(name) for name in ("mode", "steer_first_token", "force")))
            groups.setdefault(key, []).append(number)
        found: dict[int, list[int]] = {}
        for numbers in groups.values():
            found.update(zip(numbers, self._batch([cases[number] for number in numbers]), strict=True))
        return [found[number] for number in range(len(cases))]

    def _batch(self, cases: list[Case]) -> list[list[int]]:
        images = {} if cases[0].image is None else {"images": [case.image for case in cases]}
        inputs = self.processor(text=[case.text for case in cases], padding=True, return_tensors="pt", **images)
        override = {name: [_row(case, name, self.config) for case in cases] for name in ROW_SETTINGS}
        scalars = {name: value for name, value in _settings(cases[0].rudder).items() if name not in ROW_SETTINGS}
        longest = max(case.length for case in cases)
        with warnings.catch_warnings(), attach(self.model, self.config):
            warnings.simplefilter("ignore")
            out = self.model.generate(
                **inputs, rudder={**override, **scalars}, max_new_tokens=longest, do_sample=False
            )  # fmt: skip
        new = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [row[: case.length] for row, case in zip(new, cases, strict=True)]


def _settings(rudder: Any) -> dict[str, Any]:
    return rudder if isinstance(rudder, dict) else {}


def _row(case: Case, name: str, config: RudderConfig) -> Any:
    if name == "alpha_max" and case.rudder is False:
        return 0.0
    return _settings(case.rudder).get(name, getattr(config, name))
