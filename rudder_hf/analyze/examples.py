"""Ask about images without and with RUDDER; count all example scenes and choose by fixed rules which to show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL.Image import Image

from ..hub.modeling import RudderForConditionalGeneration
from ..metrics.chair import parse
from ..runtime.answers import encode, without_prompt
from ..scenes.captions import DETAIL_PROMPT
from ..scenes.embedded import draw, examples
from .tokens import TracedAnswer, traced_answers

RULES = (
    "First scene where vanilla names absent objects and RUDDER does not",
    "First scene where RUDDER names more absent objects",
    "First scene with the same answer",
)


@dataclass(frozen=True)
class AnswerPair:
    """What a model says about one image."""

    vanilla: str  # without RUDDER
    steered: str  # with RUDDER
    traced: TracedAnswer  # the steered answer, token by token
    settings: dict[str, Any]  # RUDDER's, on this image


def ask(
    model: RudderForConditionalGeneration, processor: Any, images: Sequence[Image], prompt: str, max_new_tokens: int
) -> list[AnswerPair]:
    """Ask one question about each image, all in one batch, greedily, without and with RUDDER.

    Args:
        model: A steered model.
        processor: Its processor.
        images: The images.
        prompt: The question.
        max_new_tokens: Longest answer.
    """
    inputs = encode(model, processor, list(images), [prompt] * len(images))

    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1}
    vanilla = without_prompt(model.generate(**inputs, **options, rudder=False), inputs["input_ids"])
    texts = processor.tokenizer.batch_decode(vanilla, skip_special_tokens=True)
    steered = model.generate(**inputs, **options, return_dict_in_generate=True, output_rudder=True)
    # All rows have the same settings here.
    found = steered.rudder.settings.items()
    settings = {name: value[0] if isinstance(value, list) else value for name, value in found}
    traced = traced_answers(steered, inputs["input_ids"], processor.tokenizer)
    pairs = zip(texts, traced, strict=True)
    return [AnswerPair(text.strip(), answer.text.strip(), answer, settings) for text, answer in pairs]


@dataclass(frozen=True)
class Examples:
    """Answers to images of which it is known what is in them."""

    present: Sequence[Collection[str]]  # categories in each image
    vanilla: Sequence[str]
    steered: Sequence[str]

    @cached_property
    def absent(self) -> list[tuple[int, int]]:
        """How many absent objects vanilla and RUDDER name for each image, each object once."""
        return [
            (len(_named_categories(before) - set(there)), len(_named_categories(after) - set(there)))
            for there, before, after in zip(self.present, self.vanilla, self.steered, strict=True)
        ]

    def chosen(self) -> dict[int, str]:
        """The images to show, by place from 0 on, with the rule that chose each; a rule may choose none."""
        same = [before == after for before, after in zip(self.vanilla, self.steered, strict=True)]
        kept = (
            [before > after == 0 for before, after in self.absent],
            [after > before for before, after in self.absent],
            same,
        )
        return {holds.index(True): rule for rule, holds in zip(RULES, kept, strict=True) if any(holds)}

    def summary(self) -> str:
        """What all images show: absent objects, and answers that repeat an object, which RUDDER may pay with."""
        before, after = (sum(column) for column in zip(*self.absent, strict=True))
        objects = [sum(len(_named_categories(text)) for text in texts) for texts in (self.vanilla, self.steered)]
        fewer, more = (sum(sign * (b - a) > 0 for a, b in self.absent) for sign in (-1, 1))
        repeating = [sum(_repeats(text) for text in texts) for texts in (self.vanilla, self.steered)]
        return (
            f"Absent objects named in all {len(self.present)} scenes: vanilla {before} of {objects[0]}, steered "
            f"{after} of {objects[1]} objects; with RUDDER fewer in {fewer} scenes, more in {more}. "
            f"Answers that name an object twice: vanilla {repeating[0]}, steered {repeating[1]}."
        )


def answer_examples(
    model: RudderForConditionalGeneration, processor: Any, prompt: str = DETAIL_PROMPT, max_new_tokens: int = 64
) -> Examples:
    """Describe all example scenes, unsteered and with the model's own settings, in one batch."""
    scenes = examples()
    found = ask(model, processor, [draw(scene) for scene in scenes], prompt, max_new_tokens)
    return Examples(
        [scene.names for scene in scenes], [answer.vanilla for answer in found], [answer.steered for answer in found]
    )


def _named_categories(text: str) -> set[str]:
    return set(parse(text).categories)


def _repeats(text: str) -> bool:
    return len(parse(text).mentions) > len(_named_categories(text))
