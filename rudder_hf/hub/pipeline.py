"""Encode images and prompts for `generate`, and run `pipeline("image-to-text", ...)` for steered models.

Joined with `images` into the `pipeline_rudder.py` of settings repositories, so it imports nothing from core/.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, GenerationConfig, Pipeline
from transformers.utils.chat_template_utils import Chat

from .images import read_image

DEFAULT_PROMPT = "Please help me describe the image in detail"
"""The prompt where none is given: the paper's question."""
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


def as_chat(image: Any, text: str) -> list[dict[str, Any]]:
    """Make a chat of one message: an image and a text."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]


def encode_prompts(
    processor: Any, images: Sequence[Any], texts: Sequence[str], chats: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Encode a batch of prompts for `generate`, padded on the left. The processor itself is not changed.

    A text that places its image itself (`"USER: <image> ... ASSISTANT:"`) is used unchanged, any other one through the
    processor's chat template; without a template the placeholder is put before it. Whole `chats`, with their images in
    them, are taken instead of `images` and `texts`.
    """
    images = [read_image(image) if isinstance(image, Image.Image) else image for image in images]
    # Prompts have to end together for generation. A Q-Former's own tokenizer keeps its side.
    processor = copy.copy(processor)
    processor.tokenizer = copy.copy(processor.tokenizer)
    processor.tokenizer.padding_side = "left"
    token = getattr(processor, "image_token", None)
    token = None if token is None else str(getattr(token, "content", token))
    placed = chats is None and token is not None and all(token in text for text in texts)
    if chats is not None or (getattr(processor, "chat_template", None) and not placed):
        encoded = processor.apply_chat_template(
            list(chats) if chats is not None else [as_chat(*pair) for pair in zip(images, texts, strict=True)],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        )
        return dict(encoded)
    # BLIP's processors set the placeholders themselves.
    if not placed and not hasattr(processor, "num_query_tokens"):
        texts = [f"{token or '<image>'}\n{text}" for text in texts]
    return dict(processor(images=[[image] for image in images], text=list(texts), padding=True, return_tensors="pt"))


def call_options(pipeline: Pipeline, generate_kwargs: dict[str, Any] | None, **direct: Any) -> dict[str, Any]:
    """Return what a call passes to `generate`; without `rudder=`, the one that the pipeline was made with.

    Raises:
        ValueError: An option is given in `generate_kwargs` and directly.
    """
    options, direct = dict(generate_kwargs or {}), {name: value for name, value in direct.items() if value is not None}
    for name in direct.keys() & options.keys():
        raise ValueError(f"{name!r} is given twice, once in `generate_kwargs` and once directly: use one.")
    # The options of a call replace all of those that the pipeline was made with. There are none while it is made.
    made_with = getattr(pipeline, "_forward_params", {}).get("generate_kwargs", {})
    return {name: value for name, value in made_with.items() if name == "rudder"} | options | direct


class RudderImageToTextPipeline(Pipeline):
    """Describe images, or answer a question about each.

    Takes what `pipeline("image-to-text")` took before transformers 5: a path, URL, base64 string or PIL image, a list,
    dataset or generator of these, with `prompt=`, `max_new_tokens=`, `generate_kwargs=`, `timeout=` and `batch_size=`;
    chats too, and `rudder=` as for `generate`. Returns `[{"generated_text": ...}]` for one image and a list of such
    lists for several. The text is the answer; with `return_full_text=True` the prompt stands before it.

    A prompt that places the image itself (`"USER: <image> ... ASSISTANT:"`) is used unchanged, any other one through
    the processor's chat template.
    """

    _load_processor = True
    _load_image_processor = False
    _load_feature_extractor = False
    _load_video_processor = False
    _load_tokenizer = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def _sanitize_parameters(
        self,
        prompt: str | None = None,
        max_new_tokens: int | None = None,
        generate_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        rudder: Any = None,
        return_full_text: bool | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(f"prompt is {prompt!r}, but has to be one string for all images of a call.")
        preprocess = {"prompt": prompt, "timeout": timeout}
        generate = call_options(self, generate_kwargs, max_new_tokens=max_new_tokens, rudder=rudder)
        forward = {"generate_kwargs": generate or None, "return_full_text": return_full_text}
        return (
            {key: value for key, value in group.items() if value is not None} for group in (preprocess, forward, {})
        )  # type: ignore[return-value]

    def __call__(self, inputs: Any = None, **kwargs: Any) -> Any:
        """Describe one image or several.

        Args:
            inputs: Path, URL, base64 string, PIL image or chat, or a list, dataset or generator of these.
            **kwargs: `prompt`, `max_new_tokens`, `generate_kwargs`, `timeout`, `batch_size`, `num_workers`, `rudder`
                (as for `generate`), `return_full_text`.

        Raises:
            ValueError: There is no image, or it cannot be read.
        """
        if inputs is None:
            raise ValueError("The image-to-text pipeline needs an image: a path, URL, PIL image, or a list of these.")
        if isinstance(inputs, (list, tuple)):
            inputs = list(inputs)
            if not inputs:
                return []
        return super().__call__(inputs, **kwargs)

    def preprocess(self, inputs: Any, prompt: str | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Load the image of a prompt, or check that a chat has one."""
        if not isinstance(inputs, Chat):
            return {"prompt": (read_image(inputs, timeout), DEFAULT_PROMPT if prompt is None else prompt, None)}
        if prompt is not None:
            raise ValueError("Both a chat and a prompt are given: write the prompt into the chat.")
        contents = [message["content"] for message in inputs.messages if isinstance(message["content"], list)]
        parts = [part for content in contents for part in content if isinstance(part, dict)]
        if not any(part.get("type") in ("image", "video") for part in parts):
            raise ValueError("The chat has no image: add {'type': 'image', 'url': ...} to the content of a message.")
        return {"prompt": (None, "", inputs.messages)}

    def _forward(
        self,
        model_inputs: dict[str, Any],
        generate_kwargs: dict[str, Any] | None = None,
        return_full_text: bool = False,
    ) -> dict[str, Any]:
        given = model_inputs["prompt"]
        prompts = given if isinstance(given, list) else [given]
        images, texts, messages = zip(*prompts, strict=True)
        chats = [chat or as_chat(image, text) for image, text, chat in prompts] if any(messages) else None
        inputs = BatchFeature(encode_prompts(self.processor, images, texts, chats)).to(self.device, self.dtype)
        self._refuse_lost_image(inputs)
        options = {**(generate_kwargs or {}), "return_dict_in_generate": False}
        # transformers before 5.20 has no `_prepare_generate_kwargs`: a pipeline holds a generation config instead.
        if hasattr(self, "_prepare_generate_kwargs"):
            options = self._prepare_generate_kwargs(options)
        else:
            options = {"generation_config": self.generation_config, **options}
        sequences: Tensor = self.model.generate(**inputs, **options)
        prompt_ids = inputs["input_ids"]
        copies, length = sequences.shape[0] // prompt_ids.shape[0], prompt_ids.shape[1]
        repeated = prompt_ids.repeat_interleave(copies, dim=0)
        # Models that are prompted with embeddings return the answer alone.
        answers = sequences[:, length:] if torch.equal(sequences[:, :length], repeated) else sequences
        if return_full_text:
            answers = torch.cat([repeated, answers], dim=1)
        written = [text.strip() for text in self.processor.batch_decode(answers, skip_special_tokens=True)]
        by_prompt = [written[row * copies : (row + 1) * copies] for row in range(len(prompts))]
        return {"texts": by_prompt if isinstance(given, list) else by_prompt[0]}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, str]]:
        """Return the texts in the pipeline's form."""
        return [{"generated_text": text} for text in model_outputs["texts"]]

    def _refuse_lost_image(self, inputs: Any) -> None:
        """Raise where an image did not make it into the model's inputs."""
        images = any(name.startswith(("pixel_values", "image")) for name in inputs)
        # PEFT models and the wrapper pass on the base's config.
        tokens = [getattr(self.model.config, name, None) for name in _IMAGE_TOKENS]
        tokens = [token for token in tokens if isinstance(token, int)]
        ids = inputs["input_ids"]
        placed = torch.isin(ids, torch.tensor(tokens, device=ids.device)).any(dim=1).all() if tokens else True
        if not images or not placed:
            raise ValueError(
                "The prompt has no place for the image, which would be lost. Leave the placeholder out to have it "
                "set, or write the model's own into the prompt."
            )
