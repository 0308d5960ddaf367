"""Training batches: one packed sequence per image.

A sequence is a shared prefix (start, image) and several branches that each continue the prefix: a caption
with its prompt, and questions with their answers. A branch sees the prefix and itself only, and its positions
start right behind the prefix, so each branch is exactly the single-turn prompt that the model meets in use,
while the image is computed once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rudder_hf.scenes import captions
from rudder_hf.scenes.captions import article
from rudder_hf.scenes.images import Scene, draw, prior_weight
from rudder_hf.scenes.world import OBJECT_NAMES, PLACES

from .drift import DrawnCaption, Drift, drawn_brief_caption, drifting_caption
from .families import CLIP_MEAN, CLIP_STD, IMAGE_TOKENS, Family
from .tokenizer import BACKGROUND_WORD, BRIEF_PROMPT, token_id

IGNORE = -100
QUESTIONS = 3
CAPTION, REPLY, NAMED = 1, 2, 3  # kinds of labels: caption token, answer to a question, answer at the object's word


@dataclass
class Batch:
    """Tensors of a training batch; `labels` are already shifted, `kinds` say which loss a label belongs to."""

    pixels: Tensor  # (rows, 3, side, side)
    words: Tensor  # (rows, image tokens): the first word of what each patch shows
    places: Tensor  # (rows,)
    ids: Tensor  # (rows, length)
    positions: Tensor  # (rows, length)
    mask: Tensor  # (rows, 1, length, length): zero where a token sees another, else the least number
    labels: Tensor  # (rows, length)
    kinds: Tensor  # (rows, length)
    slots: Tensor  # (rows, length), bool: where the next token of a caption names an object
    objects: Tensor  # (slots, vocabulary): the probabilities that those objects were drawn from


class WordIds:
    """Token ids of words and texts by plain look-up, faster than the tokenizer and equal to it."""

    def __init__(self, family: Family, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.known: dict[str, tuple[int, ...]] = {}
        self.eos = int(tokenizer.eos_token_id)
        self.pad = int(tokenizer.pad_token_id)
        self.image = token_id(tokenizer, "<image>")
        start = tokenizer("<s> USER: <image>", add_special_tokens=False).input_ids[:-1]
        before, after = ([token_id(tokenizer, t) for t in part] for part in (family.before, family.after))
        self.prefix: list[int] = [*start, *before, *[self.image] * IMAGE_TOKENS, *after]
        self.image_span = slice(self.prefix.index(self.image), self.prefix.index(self.image) + IMAGE_TOKENS)
        self.yes, self.no = (token_id(tokenizer, f"▁{w}") for w in ("Yes", "No"))
        self.first_word: dict[str, int] = {n: self(n)[0] for n in (*OBJECT_NAMES, BACKGROUND_WORD)}
        self.is_object = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.is_object[[self.first_word[name] for name in OBJECT_NAMES]] = True
        self.is_article = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.is_article[[token_id(tokenizer, f"▁{word}") for word in ("a", "an", "A", "An")]] = True

    def sentence(self, text: str) -> tuple[int, ...]:
        """Ids of one sentence; sentences come from few templates, so they are remembered."""
        if text not in self.known:
            self.known[text] = tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
        return self.known[text]

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, sentence by sentence, so that the cache is hit."""
        return [i for part in captions.scene_sentences(text) for i in self.sentence(part)]


def pixel_values(scenes: list[Scene]) -> Tensor:
    """What the image processor makes of the images (they already have its size)."""
    pixels = torch.from_numpy(np.stack([np.asarray(draw(scene)) for scene in scenes])).float().div(255)
    return ((pixels - torch.tensor(CLIP_MEAN)) / torch.tensor(CLIP_STD)).permute(0, 3, 1, 2).contiguous()


def patch_words(scenes: list[Scene], words: WordIds) -> Tensor:
    """The first word of the object in each grid cell, or the background word."""
    labels = torch.full((len(scenes), IMAGE_TOKENS), words.first_word[BACKGROUND_WORD])
    for row, scene in enumerate(scenes):
        for thing in scene.things:
            labels[row, thing.cell] = words.first_word[thing.name]
    return labels


def place_labels(scenes: list[Scene]) -> Tensor:
    """Index of each scene's place."""
    order = list(PLACES)
    return torch.tensor([order.index(scene.place) for scene in scenes])


def _questions(scene: Scene, random: np.random.RandomState, words: WordIds) -> list[list[tuple[int, int, int]]]:
    """Balanced questions as branches of (token, label, kind); wrong objects are half likely ones, half any."""
    branches = []
    absent = [n for n in OBJECT_NAMES if n not in scene.names]
    likely = sorted(absent, key=lambda n: -prior_weight(scene.place, n, set(scene.names)))[:6]
    for number in range(QUESTIONS):
        true = (number + scene.seed) % 2 == 0
        pool = list(scene.names) if true else (likely if random.randint(2) else absent)
        name = pool[int(random.randint(len(pool)))]
        answer = words.yes if true else words.no
        head, ending = words.sentence(f"Is there {captions.noun(name)}"), words.sentence("in the image?")
        branch = [(i, IGNORE, 0) for i in (*head, *ending, *words.sentence("ASSISTANT:"))]
        branch[len(head) - 1] = (head[-1], answer, NAMED)
        branch[-1] = (branch[-1][0], answer, REPLY)
        branches.append([*branch, (answer, words.eos, REPLY)])
    return branches


def _object_targets(drawn: DrawnCaption, words: WordIds) -> Tensor:
    """Probabilities of the first word of each object, given the article before it, (objects, vocabulary)."""
    targets = torch.zeros(len(drawn.slots), len(words.is_object))
    for row, (slot, said) in enumerate(zip(drawn.slots, captions.named_categories(drawn.text), strict=True)):
        fitting = {n: p for n, p in slot.items() if article(n) == article(said)}
        for name, probability in fitting.items():
            targets[row, words.first_word[name]] = probability / sum(fitting.values())
    return targets


def _answer(prompt: str, text: str, words: WordIds) -> list[tuple[int, int, int]]:
    head = [*words.sentence(prompt), *words.sentence("ASSISTANT:")]
    ids = head + words(text)
    pairs = zip(ids, [*ids[1:], words.eos], strict=True)
    return [(i, label, CAPTION) if n >= len(head) - 1 else (i, IGNORE, 0) for n, (i, label) in enumerate(pairs)]


def make_batch(scenes: list[Scene], words: WordIds, drift: Drift) -> Batch:
    """Pack captions and questions of these scenes; everything follows from the scenes' seeds."""
    rows: list[tuple[list[tuple[int, int, int]], list[int], list[int]]] = []
    objects: list[Tensor] = []
    for scene in scenes:
        random = np.random.RandomState(scene.seed ^ 0x5EED)
        # The brief caption names many objects in few words, and teaches to name each once.
        drawn = [drifting_caption(scene, random, drift), drawn_brief_caption(scene, random)]
        objects += [_object_targets(one, words) for one in drawn]
        asked = (captions.DETAIL_PROMPT, BRIEF_PROMPT)
        branches = [_answer(prompt, one.text, words) for prompt, one in zip(asked, drawn, strict=True)]
        branches += _questions(scene, random, words)
        tokens = [(i, IGNORE, 0) for i in words.prefix]
        owner, position = [0] * len(tokens), list(range(len(tokens)))
        for number, branch in enumerate(branches, start=1):
            tokens += branch
            owner += [number] * len(branch)
            position += range(len(words.prefix), len(words.prefix) + len(branch))
        rows.append((tokens, owner, position))
    length = max(len(tokens) for tokens, _, _ in rows)
    table = torch.tensor([t + [(words.pad, IGNORE, 0)] * (length - len(t)) for t, _, _ in rows])
    owners = torch.tensor([o + [-1] * (length - len(o)) for _, o, _ in rows])
    positions = torch.tensor([p + [0] * (length - len(p)) for _, _, p in rows])
    same = (owners[:, None, :] == owners[:, :, None]) | (owners[:, None, :] == 0)
    hidden = ~same | torch.ones(length, length, dtype=torch.bool).triu(1)
    return Batch(
        pixels=pixel_values(scenes),
        words=patch_words(scenes, words),
        places=place_labels(scenes),
        ids=table[..., 0],
        positions=positions,
        mask=torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)[:, None],
        labels=table[..., 1],
        kinds=table[..., 2],
        slots=(table[..., 2] == CAPTION)
        & words.is_article[table[..., 0]]
        & words.is_object[table[..., 1].clamp_min(0)],
        objects=torch.cat(objects),
    )
