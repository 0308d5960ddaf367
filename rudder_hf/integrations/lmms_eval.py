"""lmms-eval: `lmms-eval --model rudder_hf --model_args pretrained=REPO_OR_BASE --tasks pope`.

lmms-eval finds `manifest` by the entry point `lmms_eval.models` and loads the class when the model is asked for. It is
not a dependency of this package: this module is the only one that imports it. `--model_args` are those of `RudderHF`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lmms_eval.api.model import lmms
from PIL import Image

from ..evaluate.methods import make_method
from ..hub.images import read_image
from ..hub.pipeline import encode_prompts
from ..runtime.answers import answers, to_model
from ..runtime.decoding import Decoding, sample_seed
from ..runtime.environment import process_device, this_process
from ..runtime.models import load_model
from ..runtime.progress import ProgressBar

__all__ = ["RudderHF", "manifest"]

MODEL_ID = "rudder_hf"
# Of lmms-eval's own models for Hugging Face transformers.
_MAX_NEW_TOKENS = 1024


def manifest() -> Any:
    """What the entry point gives to lmms-eval's registry."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(
        model_id=MODEL_ID, chat_class_path=f"{__name__}.{RudderHF.__name__}", aliases=("rudder-hf", "rudder")
    )


class RudderHF(lmms):  # type: ignore[misc]
    """A model steered by RUDDER, or by another method of this package, for lmms-eval.

    Args:
        pretrained: Hub id or folder of a base model, or of RUDDER settings.
        method: The method: "rudder-beta", "vanilla", ...
        batch_size: Questions per batch.
        device: Where to run; with several processes each takes its own accelerator.
        dtype: Type of the weights.
        rudder: Hub id or folder of RUDDER settings to use.
        revision: Of `pretrained`.
        seed: Of sampling, where a task samples.
        **settings: Settings of the method, such as `alpha_max`.
    """

    is_simple = False  # the chat interface

    def __init__(
        self, pretrained: str, method: str = "rudder-beta", batch_size: int | str = 1, device: str | None = None,
        dtype: str = "auto", rudder: str | None = None, revision: str | None = None, seed: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        settings.pop("max_batch_size", None)  # lmms-eval passes it to every model
        process = this_process()
        self._rank, self._world_size = process.rank, process.count
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.loaded = load_model(pretrained, dtype, process_device(device, process), rudder, revision)
        self.method = make_method(method, self.loaded, settings)
        self.batch_size = int(batch_size)
        self.seed = int(seed)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.loaded.model.device  # type: ignore[no-any-return]

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Answer requests, in batches of equal options and kind of task, in the order of the requests."""
        written: dict[int, str] = {}
        with ProgressBar(shown=self.rank == 0) as bar:
            for numbers in _batches([request.args for request in requests], self.batch_size):
                texts = self._answer([requests[number].args for number in numbers])
                for number, text in zip(numbers, texts, strict=True):
                    written[number] = text
                    context, _, options = requests[number].args[:3]
                    self.cache_hook.add_partial("generate_until", (context, options), text)
                bar("answers", len(written), len(requests))
        return [written[number] for number in range(len(requests))]

    def _answer(self, batch: Sequence[tuple[Any, ...]]) -> list[str]:
        """One batch of (context, function for the messages, options, number, task, split)."""
        chats, ids = [], []
        for _, to_messages, _, number, task, split in batch:
            chats.append(_chat(to_messages(self.task_dict[task][split][number])))
            ids.append(f"{task}:{split}:{number}")
        options, method = batch[0][2], self.method
        model, processor = self.loaded.model, self.loaded.processor
        inputs = to_model(conversation_inputs(processor, chats), model)
        seeds = [sample_seed(self.seed, name) for name in ids]
        with method.applied(model) as generate:
            found = answers(generate, model, processor, inputs, decoding_of(options), seeds, ids)
        return [cut(answer.text, options.get("until")) for answer in found]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not offered: RUDDER steers what is generated, and has no likelihood of given text."""
        raise NotImplementedError("rudder_hf steers generation and scores no given text: choose a generative task.")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        """Not offered."""
        raise NotImplementedError("rudder_hf answers single questions: choose a task without several rounds.")


def _batches(requests: Sequence[tuple[Any, ...]], size: int) -> Iterator[list[int]]:
    """Numbers of requests that can be answered together: same options, at most `size`."""
    groups: dict[str, list[int]] = {}
    for number, (_, _, options, *_) in enumerate(requests):
        groups.setdefault(repr(sorted(options.items(), key=str)), []).append(number)
    for numbers in groups.values():
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


def _chat(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of lmms-eval in transformers' form."""
    return [{"role": message["role"], "content": [_part(part) for part in message["content"]]} for message in messages]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        # Some tasks write the placeholder into the text, which the template sets by itself.
        return {"type": "text", "text": str(part["text"]).replace("<image>", "").strip()}
    if part["type"] == "image" and isinstance(part["url"], Image.Image):
        return {"type": "image", "image": read_image(part["url"])}
    shown = type(part["url"]).__name__ if part["type"] == "image" else part["type"]
    raise ValueError(f"rudder_hf takes images, not {shown}: choose a task about images.")


def conversation_inputs(processor: Any, chats: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Inputs of `generate` for chats in transformers' form, with any number of images.

    Raises:
        ValueError: The processor has no chat template, and a chat has not exactly one image.
    """
    if getattr(processor, "chat_template", None):
        return encode_prompts(processor, [], [], chats)
    parts = [[part for message in chat for part in message["content"]] for chat in chats]
    images = [[part["image"] for part in each if "image" in part] for each in parts]
    if any(len(shown) != 1 for shown in images):
        raise ValueError("This model has no chat template: it takes exactly one image for each question.")
    texts = ["\n".join(part["text"] for part in each if "text" in part) for each in parts]
    return encode_prompts(processor, [shown[0] for shown in images], texts)


def decoding_of(options: dict[str, Any]) -> Decoding:
    """A task's generation options as this package's."""
    length = int(options.get("max_new_tokens") or options.get("max_gen_toks") or _MAX_NEW_TOKENS)
    temperature = float(options.get("temperature") or 0.0)
    beams = int(options.get("num_beams") or 1)
    sample = temperature > 0 and options.get("do_sample", True) is not False
    if sample and beams > 1:
        raise ValueError("rudder_hf does not sample from beams: set num_beams=1 or temperature=0.")
    if sample:
        return Decoding("nucleus", length, top_p=float(options.get("top_p") or 1.0), temperature=temperature)
    return Decoding("beam", length, num_beams=beams) if beams > 1 else Decoding("greedy", length)


def cut(text: str, until: Any) -> str:
    """The text up to the first of the marks that end an answer."""
    marks = [until] if isinstance(until, str) else list(until or [])
    ends = [text.index(mark) for mark in marks if mark and mark in text]
    return text[: min(ends)].strip() if ends else text
