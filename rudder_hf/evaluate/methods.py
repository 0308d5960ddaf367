"""The methods of a run: by name, with RUDDER's settings of the model and what the user set on top.

VTI finds its directions in pairs of correct and hallucinated captions. For an embedded model these are captions of
training scenes, which are none of those that anything is calibrated or evaluated on; in the hallucinated caption about
half of the objects are exchanged for absent ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..methods import GROUPS, NAMES, Method, Sources, method_class, unknown_method
from ..methods.base import Inputs
from ..runtime.answers import encode, with_answer
from ..runtime.models import LoadedModel
from ..scenes.captions import DETAIL_PROMPT, capitalised, detailed_caption, named_categories, noun
from ..scenes.embedded import embedded_name
from ..scenes.images import Scene, draw, train_scene
from ..scenes.world import OBJECT_NAMES

_STEERED = tuple(name for name in NAMES if name.startswith("rudder-"))
_PYTHON = {"True": "true", "False": "false", "None": "null"}  # as JSON has them
_PAIRS = 50
Prompts = Callable[[], Iterable[Inputs]]
# Scenes from here on; training starts at 0 and takes fewer.
_FIRST_SCENE = 9_000_000


def parse_names(text: str) -> list[str]:
    """Return the methods named in a text, separated by commas; groups are replaced by their members."""
    given = [name.strip() for name in text.split(",") if name.strip()]
    for name in given or [text]:
        if name not in NAMES and name not in GROUPS:
            raise unknown_method(name, tuple(GROUPS))
    if len(set(given)) < len(given):
        raise ValueError(f"A method is named twice in {text!r}.")
    # A method that is named and also in a group keeps the place where it stands first.
    return list(dict.fromkeys(member for name in given for member in GROUPS.get(name, (name,))))


def parse_optional(text: str) -> set[str]:
    """The methods that only a group asks for: they are left out where they cannot run."""
    given = [name.strip() for name in text.split(",")]
    return {member for name in given for member in GROUPS.get(name, ())} - set(given)


def parse_settings(texts: Sequence[str], methods: Collection[str] = NAMES) -> dict[str, dict[str, Any]]:
    """Return settings such as "alpha_max=8" (for all methods that are steered) or "rudder-add.alpha_max=5", by method.

    Values are written as in JSON or in Python. Without `methods` there are only settings for all of them.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, dot, setting = name.strip().rpartition(".")
        if not equals or not setting or (dot and method not in methods):
            of_method = f"write NAME=VALUE or METHOD.NAME=VALUE, with METHOD one of {', '.join(methods)}"
            form = of_method if methods else "here settings are NAME=VALUE, such as span=text"
            raise ValueError(f"--set {text} is no setting: {form}.")
        try:
            parsed = json.loads(_PYTHON.get(value.strip(), value))
        except ValueError:
            parsed = value.strip()
        found.setdefault(method, {})[setting] = parsed
    return found


def check_settings(names: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError for settings (from `parse_settings`) of methods that are not run, or that a method lacks."""
    unused = sorted(set(settings) - {"", *names})
    if unused:
        raise ValueError(f"There are settings for {unused[0]!r}, which is not one of the methods {', '.join(names)}.")
    for name in names:
        fields = dataclasses.fields(method_class(name))  # type: ignore[arg-type]
        for setting in _settings_of(name, settings).keys() - {field.name for field in fields}:
            plain = ", ".join(field.name for field in fields if field.repr)  # the rest are tensors and configs
            raise ValueError(f"{name} has no setting {setting!r}. Its settings: {plain or 'none'}.")


def _settings_of(name: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the user set for a method, by its name or for all that are steered."""
    shared = settings.get("", {}) if name in _STEERED else {}
    return {**shared, **settings.get(name, {})}


def make_method(
    name: str, loaded: LoadedModel, settings: Mapping[str, Any] | None = None,
    prompts: Prompts | None = None,
) -> Method:  # fmt: skip
    """Make a method for a model, with what the user set; the rest is as published, RUDDER's as calibrated.

    `prompts` gives inputs with other images, for the controls that take their direction from these.
    """
    sources = Sources(loaded.settings_for, _scene_pairs(loaded), prompts)
    return method_class(name).for_model(loaded.model, sources, **(settings or {}))


def make_methods(
    names: Sequence[str], loaded: LoadedModel, settings: Mapping[str, Mapping[str, Any]] | None = None,
    optional: Collection[str] = (), prompts: Prompts | None = None,
) -> tuple[list[Method], list[str]]:  # fmt: skip
    """Make methods for a model, without the optional ones that cannot run on it.

    Args:
        names: Of the methods.
        loaded: The model.
        settings: From `parse_settings`.
        optional: Methods that may be left out, from `parse_optional`.
        prompts: See `make_method`.

    Returns:
        The methods, and for each one left out its name and the reason.

    Raises:
        ValueError: A method that is not optional cannot run, none is left, or there are settings for another method.
    """
    settings = settings or {}
    check_settings(names, settings)
    made: list[Method] = []
    left_out: list[str] = []
    for name in names:
        try:
            method = make_method(name, loaded, _settings_of(name, settings), prompts)
        except ValueError as error:
            if name not in optional:
                raise
            left_out.append(f"{name} is left out: {error}")
        else:
            made.append(method)
    if not made:
        raise ValueError(f"None of the methods can run. {left_out[0]}")
    return made, left_out


def settings_record(method: Method) -> dict[str, Any]:
    """A method's settings as JSON values, and whether RUDDER's were calibrated for the model."""
    config = getattr(method, "config", None)
    record = getattr(config, "calibration", None)
    calibrated = record is not None and not record.get("refusal")
    return method.settings() | ({} if config is None else {"calibrated": calibrated})


def caption_pair(scene: Scene, seed: int) -> tuple[str, str]:
    """A true caption, and the same with every second object that it names exchanged for one that is not there."""
    random = np.random.RandomState(seed)
    correct = detailed_caption(scene, random, len(scene.names))
    named = list(dict.fromkeys(named_categories(correct)))
    absent = [name for name in OBJECT_NAMES if name not in scene.names and name not in named]
    wrong = correct
    for name in named[len(named) > 1 :: 2]:
        other = noun(absent.pop(int(random.randint(len(absent)))))
        for one, two in ((noun(name), other), (capitalised(noun(name)), capitalised(other))):
            wrong = re.sub(rf"\b{re.escape(one)}\b", two, wrong)
    return correct, wrong


def _scene_pairs(loaded: LoadedModel) -> Callable[[], Iterator[tuple[Inputs, Inputs]]] | None:
    """Inputs of `generate` that end in a correct caption, and in a hallucinated one, when called.

    None for a model that is not embedded: it would not know the scenes.
    """
    if embedded_name(loaded.name) is None:
        return None
    tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)

    def pairs() -> Iterator[tuple[Inputs, Inputs]]:
        for number in range(_PAIRS):
            scene = train_scene(0, _FIRST_SCENE + number)
            inputs = encode(loaded.model, loaded.processor, [draw(scene)], [DETAIL_PROMPT])
            ids = [
                tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"].to(loaded.model.device)
                for text in caption_pair(scene, number)
            ]
            correct, wrong = (with_answer(inputs, answer, torch.ones_like(answer)) for answer in ids)
            yield correct, wrong

    return pairs
