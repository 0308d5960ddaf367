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
    """One request.

    Attributes:
        text: Its prompt; with a picture it has the placeholder.
        picture: Seed of its picture, None for text alone.
        length: Number of tokens to answer with.
        rudder: Its settings.
    """

    text: str
    picture: int | None
    length: int
    rudder: Any

    @property
    def image(self) -> Image.Image | None:
        """Its picture."""
        return None if self.picture is None else picture(self.picture)

    @property
    def says_no(self) -> bool:
        """Whether it is to be answered as without RUDDER."""
        forced = isinstance(self.rudder, dict) and self.rudder.get("force", False)
        return self.rudder is False or (self.picture is None and not forced)


def picture(seed: int) -> Image.Image:
    """Coloured noise on a coarse grid, so that pictures differ by more than their grain."""
    rows = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(rows).resize((32, 32), Image.Resampling.NEAREST)


def make_cases(words: Sequence[str], count: int = 32, seed: int = 0, placeholder: str = "<image>") -> list[Case]:
    """Cases in which text alone, every override, and short and long prompts and answers occur."""
    draw = random.Random(seed)
    cases = []
    for number in range(count):
        text = " ".join(draw.choices(words, k=draw.randint(2, 60)))
        text_only = number % 9 == 5
        override = {"force": True, "alpha_max": 24.0} if number == 14 else OVERRIDES[number % len(OVERRIDES)]
        cases.append(
            Case(
                text if text_only else f"{placeholder} {text}",
                None if text_only else number,
                draw.randint(4, 40),
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
        turns.append(Case(text, case.picture, 24, OVERRIDES[(number + 3) % len(OVERRIDES)]))
    return turns


class Plain:
    """Plain transformers with RUDDER, one request at a time.

    Args:
        folder: The checkpoint.
        config: The settings that hold where a request says nothing.
    """

    def __init__(self, folder: Path, config: RudderConfig) -> None:
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.config = config

    def inputs(self, case: Case) -> dict[str, Any]:
        """What `generate` takes for a case."""
        images = {} if case.image is None else {"images": case.image}
        return dict(self.processor(text=case.text, return_tensors="pt", **images))

    def answer(self, case: Case) -> list[int]:
        """The tokens that follow the prompt."""
        inputs = self.inputs(case)
        with warnings.catch_warnings(), attach(self.model, self.config):
            warnings.simplefilter("ignore")
            out = self.model.generate(
                **inputs, rudder=case.rudder, max_new_tokens=case.length, min_new_tokens=case.length, do_sample=False
            )
        return [int(token) for token in out[0, inputs["input_ids"].shape[1] :]]

    def answers(self, cases: Sequence[Case]) -> list[list[int]]:
        """The answers to all cases."""
        return [self.answer(case) for case in cases]
