"""lmms-eval: `lmms-eval --model rudder_hf --model_args pretrained=REPO_OR_BASE --tasks pope`.

lmms-eval finds `manifest` by the entry point `lmms_eval.models` and loads the class when the model is asked for. It is
not a dependency of this package: this module is the only one that imports it. `--model_args` are those of `RudderHF`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from ..evaluate.methods import make_method
from ..hub.images import read_image
from ..hub.pipeline import encode_prompts
from ..runtime.answers import Decoding, answers, sample_seed, to_model
from ..runtime.environment import process_device, this_process
from ..runtime.models import load_model

__all__ = ["RudderHF", "manifest"]

_MAX_NEW_TOKENS = 1024  # where a task sets no length, as in lmms-eval's own models


def manifest() -> Any:
    """What the entry point gives to lmms-eval's registry."""
    from lmms_eval.models.registry_v2 import ModelManifest

    path = f"{__name__}.{RudderHF.__name__}"
    return ModelManifest(model_id="rudder_hf", chat_class_path=path, aliases=("rudder-hf", "rudder"))


class RudderHF(lmms):  # type: ignore[misc]
    """A model steered by RUDDER, or by another method of this package, for lmms-eval."""

    is_simple = False  # the chat interface

    def __init__(
        self,
        pretrained: str,  # Hub id (or ID@REVISION) or folder of a base model, or of RUDDER settings
        method: str = "rudder-beta",
        batch_size: int | str = 1,
        device: str | None = None,  # with several processes each takes its own accelerator
        dtype: str = "auto",
        seed: int = 0,  # of sampling, where a task samples
        **settings: Any,  # of the method, such as `alpha_max`
    ) -> None:
        super().__init__()
        settings.pop("max_batch_size", None)  # lmms-eval passes it to every model
        process = this_process()
        self._rank, self._world_size = process.rank, process.count
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.loaded = load_model(pretrained, dtype, process_device(device, process))
        self.method = make_method(method, self.loaded, settings)
        self.batch_size, self.seed = int(batch_size), int(seed)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.loaded.model.device  # type: ignore[no-any-return]

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Answer requests in order, in batches of neighbours with equal options."""
        answered: list[str] = []
        with tqdm(total=len(requests), desc="answers", disable=self.rank != 0) as progress:
            for _, alike in itertools.groupby(requests, key=lambda request: repr(request.args[2])):
                group = [request.args for request in alike]
                for start in range(0, len(group), self.batch_size):
                    batch = group[start : start + self.batch_size]
                    texts = self._answer(batch)
                    for (context, _, options, *_), text in zip(batch, texts, strict=True):
                        self.cache_hook.add_partial("generate_until", (context, options), text)
                    answered += texts
                    progress.update(len(batch))
        return answered

    def _answer(self, batch: Sequence[tuple[Any, ...]]) -> list[str]:
        """Answer one batch of (context, function for the messages, options, number, task, split)."""
        chats = [to_chat(to_messages(self.task_dict[task][split][n])) for _, to_messages, _, n, task, split in batch]
        ids, options = [f"{task}:{split}:{number}" for *_, number, task, split in batch], batch[0][2]
        model, processor = self.loaded.model, self.loaded.processor
        inputs = to_model(encode_prompts(processor, [], [], chats), model)
        seeds = [sample_seed(self.seed, name) for name in ids]
        with self.method.applied(model) as generate:
            found = answers(generate, model, processor, inputs, decoding_of(options), seeds, ids)
        return [cut(answer.text, options.get("until")) for answer in found]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not offered: RUDDER steers what is generated, and has no likelihood of given text."""
        raise NotImplementedError("rudder_hf steers generation and scores no given text: choose a generative task.")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        """Not offered."""
        raise NotImplementedError("rudder_hf answers single questions: choose a task without several rounds.")


def to_chat(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put messages of lmms-eval, which have images only, in transformers' form."""
    chat: list[dict[str, Any]] = []
    for message in messages:
        content: list[dict[str, Any]] = []
        for part in message["content"]:
            if part["type"] == "text":
                # Some tasks write the placeholder into the text, which the template sets by itself.
                content.append({"type": "text", "text": str(part["text"]).replace("<image>", "").strip()})
            elif part["type"] == "image" and isinstance(part["url"], Image.Image):
                content.append({"type": "image", "image": read_image(part["url"])})
            else:
                shown = type(part["url"]).__name__ if part["type"] == "image" else part["type"]
                raise ValueError(f"rudder_hf takes images, not {shown}: choose a task about images.")
        chat.append({"role": message["role"], "content": content})
    return chat


def decoding_of(options: dict[str, Any]) -> Decoding:
    """Return a task's generation options as this package's."""
    length = int(options.get("max_new_tokens") or options.get("max_gen_toks") or _MAX_NEW_TOKENS)
    temperature, beams = float(options.get("temperature") or 0.0), int(options.get("num_beams") or 1)
    if temperature == 0 or options.get("do_sample", True) is False:
        return Decoding("beam", length, num_beams=beams) if beams > 1 else Decoding("greedy", length)
    if beams > 1:
        raise ValueError("rudder_hf does not sample from beams: set num_beams=1 or temperature=0.")
    return Decoding("nucleus", length, top_p=float(options.get("top_p") or 1.0), temperature=temperature)


def cut(text: str, until: Any) -> str:
    """Return the text up to the first of the marks that end an answer."""
    marks = [until] if isinstance(until, str) else list(until or [])
    ends = [text.index(mark) for mark in marks if mark and mark in text]
    return text[: min(ends)].strip() if ends else text
