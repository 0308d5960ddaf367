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
from ..hub.images import as_rgb
from ..hub.processing import encode
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
        model_id=MODEL_ID, simple_class_path=f"{__name__}.{RudderHF.__name__}", aliases=("rudder-hf", "rudder")
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

    is_simple = True

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
        self.methods = {asked: make_method(method, self.loaded, settings, asked) for asked in (False, True)}
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
                    context, options = requests[number].args[:2]
                    self.cache_hook.add_partial("generate_until", (context, options), text)
                bar("answers", len(written), len(requests))
        return [written[number] for number in range(len(requests))]

    def _answer(self, batch: Sequence[tuple[Any, ...]]) -> list[str]:
        """One batch of (context, options, function for the images, number, task, split)."""
        contexts = [str(arguments[0]) for arguments in batch]
        images, ids = [], []
        for _, _, to_visual, number, task, split in batch:
            visuals = to_visual(self.task_dict[task][split][number]) or []
            images.append([_image(visual) for visual in visuals])
            ids.append(f"{task}:{split}:{number}")
        options, method = batch[0][1], self.methods[_asks_yes_or_no(batch[0][4])]
        model, processor = self.loaded.model, self.loaded.processor
        inputs = to_model(conversation_inputs(processor, images, contexts), model)
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


def _asks_yes_or_no(task: str) -> bool:
    """Whether a task is POPE or MME, for which some methods have other published settings: "pope_adv", "mme"."""
    return task.split("_")[0] in ("pope", "mme")


def _batches(requests: Sequence[tuple[Any, ...]], size: int) -> Iterator[list[int]]:
    """Numbers of requests that can be answered together: same options and kind of task, at most `size`."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for number, (_, options, _, _, task, _) in enumerate(requests):
        groups.setdefault((repr(sorted(options.items(), key=str)), _asks_yes_or_no(task)), []).append(number)
    for numbers in groups.values():
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


def _image(visual: Any) -> Image.Image:
    if isinstance(visual, Image.Image):
        return as_rgb(visual)
    raise ValueError(f"rudder_hf takes images, not {type(visual).__name__}: choose a task about images.")


def conversation_inputs(processor: Any, images: list[list[Image.Image]], texts: list[str]) -> dict[str, Any]:
    """Inputs of `generate` for any number of images in front of each text.

    Raises:
        ValueError: The processor has no chat template, and a prompt has not exactly one image.
    """
    # Some tasks write the placeholder into the text, which the template sets by itself.
    texts = [text.replace("<image>", "").strip() for text in texts]
    if all(len(shown) == 1 for shown in images):
        return encode(processor, [shown[0] for shown in images], texts)
    if not getattr(processor, "chat_template", None):
        raise ValueError("This model has no chat template: it takes exactly one image for each question.")
    chats = []
    for shown, text in zip(images, texts, strict=True):
        content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in shown]
        chats.append([{"role": "user", "content": [*content, {"type": "text", "text": text}]}])
    return encode(processor, [], [], chats)


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
