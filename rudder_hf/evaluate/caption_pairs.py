"""Pairs of correct and hallucinated captions of training scenes, from which VTI finds its directions.

Each pair is one caption of a training scene, and the same caption with about half of its objects exchanged for absent
ones. Training scenes, because they are none of those that anything is calibrated or evaluated on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..methods.base import Inputs
from ..runtime.answers import encode
from ..runtime.models import LoadedModel
from ..scenes.captions import DETAIL_PROMPT, detailed_caption, mentions, noun
from ..scenes.embedded import embedded_name
from ..scenes.images import Scene, draw, train_scene
from ..scenes.world import NAMES

PAIRS = 50
# Scenes from here on; training starts at 0 and takes fewer.
_FIRST_SCENE = 9_000_000


def caption_pair(scene: Scene, seed: int) -> tuple[str, str]:
    """A true caption, and the same with every second object that it names exchanged for one that is not there."""
    random = np.random.RandomState(seed)
    correct = detailed_caption(scene, random, len(scene.names))
    named = list(dict.fromkeys(mentions(correct)))
    absent = [name for name in NAMES if name not in scene.names and name not in named]
    wrong = correct
    for name in named[len(named) > 1 :: 2]:
        other = noun(absent.pop(int(random.randint(len(absent)))))
        for one, two in ((noun(name), other), (_capital(noun(name)), _capital(other))):
            wrong = re.sub(rf"\b{re.escape(one)}\b", two, wrong)
    return correct, wrong


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def scene_pairs(loaded: LoadedModel, count: int = PAIRS) -> Callable[[], Iterator[tuple[Inputs, Inputs]]] | None:
    """Inputs of `generate` that end in a correct caption, and in a hallucinated one, when called.

    None for a model that is not embedded: it would not know the scenes.
    """
    if embedded_name(loaded.name) is None:
        return None
    tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)

    def pairs() -> Iterator[tuple[Inputs, Inputs]]:
        for number in range(count):
            scene = train_scene(0, _FIRST_SCENE + number)
            inputs = encode(loaded.model, loaded.processor, [draw(scene)], [DETAIL_PROMPT])
            correct, wrong = (
                _joined(inputs, tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"])
                for text in caption_pair(scene, number)
            )
            yield correct, wrong

    return pairs


def _joined(inputs: Inputs, answer: Tensor) -> dict[str, Any]:
    """The inputs of a prompt with an answer after it."""
    ids = answer.to(inputs["input_ids"].device)
    added = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {**inputs, **{name: torch.cat([inputs[name], part], dim=1) for name, part in added.items()}}
