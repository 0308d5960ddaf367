"""Pairs of correct and hallucinated captions of training scenes, from which VTI finds its directions.

Each pair is one caption of a training scene, and the same caption with about half of its objects exchanged for absent
ones. Training scenes, because they are none of those that anything is calibrated or evaluated on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..methods import textual_directions
from ..runtime.inputs import encode
from ..runtime.models import Subject
from ..scenes.captions import DETAIL_PROMPT, detailed_caption, mentions, noun
from ..scenes.coco import CLEAN
from ..scenes.embedded import embedded_name
from ..scenes.pictures import Scene, draw, train_scene
from ..scenes.world import NAMES

PAIRS = 50
# Scenes from here on; training starts at 0 and takes fewer.
_FIRST_SCENE = 9_000_000


def caption_pair(scene: Scene, seed: int) -> tuple[str, str]:
    """A true caption, and the same with every second object that it names exchanged for one that is not there."""
    random = np.random.RandomState(seed)
    correct = detailed_caption(scene, random, CLEAN, len(scene.names))
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


def scene_pairs(subject: Subject, count: int = PAIRS) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Inputs as for `generate` that end in a correct caption, and in a hallucinated one."""
    tokenizer = getattr(subject.processor, "tokenizer", subject.processor)
    for number in range(count):
        scene = train_scene(0, _FIRST_SCENE + number)
        inputs = encode(subject.model, subject.processor, [draw(scene)], [DETAIL_PROMPT])
        pair = []
        for text in caption_pair(scene, number):
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"].to(subject.model.device)
            answer = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            joined = {name: torch.cat([inputs[name], added], dim=1) for name, added in answer.items()}
            pair.append({**inputs, **joined})
        yield pair[0], pair[1]


def scene_directions(subject: Subject) -> Tensor:
    """VTI's directions for an embedded model.

    Raises:
        ValueError: The model is not an embedded one, whose scenes it would not know.
    """
    if embedded_name(subject.name) is None:
        raise ValueError(
            "vti needs directions for the model, which are found once from pairs of captions: "
            "rudder_hf.methods.textual_directions(model, pairs). The command line has pairs for the embedded "
            "models only."
        )
    return textual_directions(subject.model, scene_pairs(subject))
