"""How the embedded model describes the scenes: CHAIR, recall, fluency, repetition and POPE, exact by construction.

The grammar is the project's own, so object names are found by plain look-up here; `rudder_hf.evaluate` has the
full metrics for free English.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

from . import captions
from .batches import pixel_values
from .families import IMAGE_TOKENS, family_of
from .pictures import Scene
from .words import prompt, token_id
from .world import NAMES

MAX_NEW_TOKENS = 120


@dataclass(frozen=True)
class CaptionScores:
    """Scores of a set of captions, in percent except the last two."""

    chair_s: float
    chair_i: float
    chair_i_distinct: float
    recall: float
    broken: float
    repeated: float
    repeated_objects: float
    objects: float
    words: float


@torch.no_grad()
def caption(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], batch: int = 150,
    text: str = captions.DETAIL_PROMPT, **generate: Any,
) -> list[str]:  # fmt: skip
    """Captions of the scenes, greedy unless `generate` says otherwise."""
    written: list[str] = []
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": MAX_NEW_TOKENS, **generate}
    for start in range(0, len(scenes), batch):
        part = scenes[start : start + batch]
        inputs = model_inputs(model, processor, part, [text] * len(part))
        out: Any = model.generate(**inputs, **options)  # type: ignore[operator]
        written += tokenizer_of(processor).batch_decode(
            out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
    return written


def tokenizer_of(processor: ProcessorMixin) -> PreTrainedTokenizerFast:
    """The processor's tokenizer."""
    return processor.tokenizer  # type: ignore[no-any-return, attr-defined]


def model_inputs(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], texts: list[str]
) -> dict[str, Tensor]:
    """What the processor makes of pictures and prompts of one length, without drawing through PNG or PIL resizing."""
    family = family_of(model)
    picture = "".join((*family.before, *["<image>"] * IMAGE_TOKENS, *family.after))
    rows = [prompt(t).replace("<image>", picture) for t in texts]
    ids = torch.tensor(tokenizer_of(processor)(rows, add_special_tokens=False).input_ids)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **family.inputs(pixel_values(scenes))}


def counts(scenes: list[Scene], texts: list[str]) -> NDArray[np.float64]:
    """Per caption: hallucinated mentions, mentions, hallucinated and all distinct objects, true objects found and
    present, broken and repeated sentences, sentences, words. Shape (captions, 10).
    """
    rows = []
    for scene, text in zip(scenes, texts, strict=True):
        named, truth, parts = captions.mentions(text), set(scene.names), captions.sentences(text)
        wrong = [n for n in named if n not in truth]
        rows.append((
            len(wrong), len(named), len(set(wrong)), len(set(named)), len(set(named) & truth), len(truth),
            captions.broken_sentences(text), len(parts) - len(set(parts)), len(parts), len(text.split()),
        ))  # fmt: skip
    return np.asarray(rows, dtype=np.float64)


def scores(table: NDArray[np.float64]) -> CaptionScores:
    """Scores from `counts`."""
    total = np.maximum(table.sum(0), 1e-9)
    return CaptionScores(
        chair_s=100 * float((table[:, 0] > 0).mean()),
        chair_i=100 * float(table[:, 0].sum() / total[1]),
        chair_i_distinct=100 * float(table[:, 2].sum() / total[3]),
        recall=100 * float(table[:, 4].sum() / total[5]),
        broken=100 * float(table[:, 6].sum() / total[8]),
        repeated=100 * float(table[:, 7].sum() / total[8]),
        repeated_objects=100 * float(1 - table[:, 3].sum() / total[1]),
        objects=float(table[:, 3].mean()),
        words=float(table[:, 9].mean()),
    )


def paired_interval(
    left: NDArray[np.float64], right: NDArray[np.float64], samples: int = 2000, seed: int = 0
) -> dict[str, tuple[float, float, float]]:
    """Difference right - left of each score on the same scenes, with a 95 % paired bootstrap interval."""
    random = np.random.RandomState(seed)
    base = {k: v - asdict(scores(left))[k] for k, v in asdict(scores(right)).items()}
    draws: dict[str, list[float]] = {k: [] for k in base}
    for _ in range(samples):
        rows = random.randint(len(left), size=len(left))
        first, second = asdict(scores(left[rows])), asdict(scores(right[rows]))
        for name in draws:
            draws[name].append(second[name] - first[name])
    ends = {k: np.percentile(v, (2.5, 97.5)) for k, v in draws.items()}
    return {k: (base[k], float(ends[k][0]), float(ends[k][1])) for k in base}


def pope_questions(scenes: list[Scene], kind: str, seed: int = 0) -> list[tuple[int, str, bool]]:
    """POPE's questions (scene number, object, present): three positives per scene, each followed by a negative."""
    if kind not in ("random", "popular", "adversarial"):
        raise ValueError(f"unknown POPE split {kind!r}; choose random, popular or adversarial")
    random = np.random.RandomState(seed)
    popular = [n for n, _ in Counter(n for s in scenes for n in s.names).most_common()]
    together: dict[str, Counter[str]] = {n: Counter() for n in NAMES}
    for scene in scenes:
        for name in scene.names:
            together[name].update(n for n in scene.names if n != name)
    questions = []
    for number, scene in enumerate(scenes):
        if len(scene.names) < 3:
            continue
        used = set(scene.names)
        for name in scene.names[:3]:
            order = {
                "random": [NAMES[int(i)] for i in random.permutation(len(NAMES))],
                "popular": popular,
                "adversarial": [n for n, _ in together[name].most_common()] + popular,
            }[kind]
            negative = next(n for n in (*order, *NAMES) if n not in used)  # few scenes have few popular objects
            used.add(negative)
            questions += [(number, name, True), (number, negative, False)]
    return questions


@torch.no_grad()
def answer_questions(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene],
    questions: list[tuple[int, str, bool]], batch: int = 250,
) -> list[bool]:  # fmt: skip
    """Whether the first answer token is Yes, for each question."""
    yes, no = (token_id(tokenizer_of(processor), f"▁{w}") for w in ("Yes", "No"))
    answers: dict[int, bool] = {}
    lengths: dict[int, list[int]] = {}
    for index, (_, name, _) in enumerate(questions):
        lengths.setdefault(len(name.split()), []).append(index)
    for group in lengths.values():
        for start in range(0, len(group), batch):
            part = group[start : start + batch]
            asked = [captions.question(questions[i][1]) for i in part]
            inputs = model_inputs(model, processor, [scenes[questions[i][0]] for i in part], asked)
            logits = model(**inputs, logits_to_keep=1).logits[:, -1]
            answers |= {i: bool(v) for i, v in zip(part, (logits[:, yes] > logits[:, no]).tolist(), strict=True)}
    return [answers[i] for i in range(len(questions))]


def pope_scores(questions: list[tuple[int, str, bool]], answers: list[bool]) -> dict[str, float]:
    """Accuracy, F1 and share of yes, in percent."""
    truth, given = np.asarray([q[2] for q in questions]), np.asarray(answers)
    hits = float((truth & given).sum())
    f1 = 2 * hits / max(float(truth.sum() + given.sum()), 1.0)
    return {"accuracy": 100 * float((truth == given).mean()), "f1": 100 * f1, "yes": 100 * float(given.mean())}
