"""`pipeline("image-to-text", ...)` for steered models: pictures in, `[{"generated_text": ...}]` out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, ImageTextToTextPipeline, Pipeline
from transformers.image_utils import load_image
from transformers.utils.chat_template_utils import Chat

from ..core.backbones import image_token_ids, without_peft

DEFAULT_PROMPT = "Please help me describe the image in detail"
"""What is asked where no prompt is given: the paper's question."""
_UNSET: Any = object()


@dataclass(frozen=True)
class ImagePrompt:
    """One picture and what is asked about it; or a chat.

    Attributes:
        image: The picture, None in a chat.
        text: What is asked.
        messages: The chat.
    """

    image: Any = None
    text: str = DEFAULT_PROMPT
    messages: Any = None


class RudderImageToTextPipeline(Pipeline):
    """Describe pictures, or answer a question about each.

    Takes what `pipeline("image-to-text")` took before transformers 5: a path, URL, base64 string or PIL image, a list,
    dataset or generator of these, with `prompt=`, `max_new_tokens=`, `generate_kwargs=`, `timeout=` and `batch_size=`;
    chats too. Returns `[{"generated_text": ...}]` for one picture and a list of such lists for several. The text is
    the answer; with `return_full_text=True` the prompt stands before it.

    A prompt that places the picture itself (`"USER: <image> ... ASSISTANT:"`) is used as it is, any other one through
    the processor's chat template.
    """

    _load_processor = True
    _load_image_processor = False
    _load_feature_extractor = False
    _load_video_processor = False
    _load_tokenizer = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.processor is None:
            raise ValueError("The pipeline needs the processor of the base model: pass processor=AutoProcessor....")

    def _sanitize_parameters(
        self,
        prompt: str | None = None,
        max_new_tokens: int | None = None,
        generate_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        rudder: Any = _UNSET,
        return_full_text: bool | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(f"prompt is {prompt!r}, but has to be one string for all pictures of a call.")
        preprocess = {"prompt": prompt, "timeout": timeout}
        generate = dict(generate_kwargs or {})
        for name, value in (("max_new_tokens", max_new_tokens), ("rudder", rudder)):
            if value is None or value is _UNSET:
                continue
            if name in generate:
                raise ValueError(f"{name!r} is given twice, once in `generate_kwargs` and once directly: use one.")
            generate[name] = value
        forward = {"generate_kwargs": generate or None, "return_full_text": return_full_text}
        return (
            {key: value for key, value in group.items() if value is not None} for group in (preprocess, forward, {})
        )  # type: ignore[return-value]

    def __call__(self, inputs: Any = None, *, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        """Describe one picture or several.

        Args:
            inputs: Path, URL, base64 string, PIL image or chat, or a list, dataset or generator of these.
            images: Another name for `inputs`.
            text: Another name for `prompt`, or a chat.
            **kwargs: `prompt`, `max_new_tokens`, `generate_kwargs`, `timeout`, `batch_size`, `num_workers`, `rudder`
                (as for `generate`), `return_full_text`.

        Raises:
            ValueError: There is no picture, or it cannot be read.
        """
        inputs = images if inputs is None else inputs
        if isinstance(text, str):
            kwargs.setdefault("prompt", text)
        elif text is not None:
            if inputs is not None:
                raise ValueError("Both pictures and a chat are given: put the pictures into the chat.")
            inputs = text
        if inputs is None:
            raise ValueError("The image-to-text pipeline needs a picture: a path, URL, PIL image, or a list of these.")
        if isinstance(inputs, (list, tuple)):
            inputs = list(inputs)
            if not inputs:
                return []
        return super().__call__(inputs, **kwargs)

    def preprocess(self, inputs: Any, prompt: str | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Load a picture; nothing that is not one passes for text."""
        if isinstance(inputs, Chat):
            if prompt is not None:
                raise ValueError("Both a chat and a prompt are given: write the prompt into the chat.")
            if not _has_picture(inputs.messages):
                raise ValueError(
                    "The chat has no picture: add {'type': 'image', 'url': ...} to the content of a message."
                )
            return {"prompt": ImagePrompt(messages=inputs.messages)}
        source = os.fspath(inputs) if isinstance(inputs, os.PathLike) else inputs
        image = load_image(source, timeout=timeout)
        return {"prompt": ImagePrompt(image, DEFAULT_PROMPT if prompt is None else prompt)}

    def _forward(
        self,
        model_inputs: dict[str, Any],
        generate_kwargs: dict[str, Any] | None = None,
        return_full_text: bool = False,
    ) -> dict[str, Any]:
        given = model_inputs["prompt"]
        prompts: list[ImagePrompt] = given if isinstance(given, list) else [given]
        encoded = encode(self.processor, prompts)
        inputs = {name: self._to_model(value) for name, value in encoded.items()}
        self._refuse_lost_picture(inputs)
        options = self._prepare_generate_kwargs(generate_kwargs or {}, return_dict_in_generate=False)
        sequences: Tensor = self.model.generate(**inputs, **options)
        prompt_ids = inputs["input_ids"]
        copies = sequences.shape[0] // prompt_ids.shape[0]
        repeated = prompt_ids.repeat_interleave(copies, dim=0)
        # Models that are prompted with embeddings return the answer alone.
        length = prompt_ids.shape[1]
        answers = sequences[:, length:] if torch.equal(sequences[:, :length], repeated) else sequences
        if return_full_text:
            answers = torch.cat([repeated, answers], dim=1)
        texts = [text.strip() for text in self.processor.batch_decode(answers, skip_special_tokens=True)]
        by_prompt = [texts[row * copies : (row + 1) * copies] for row in range(len(prompts))]
        return {"texts": by_prompt if isinstance(given, list) else by_prompt[0]}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, str]]:
        """The texts in the pipeline's form."""
        return [{"generated_text": text} for text in model_outputs["texts"]]

    def _to_model(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)

    def _refuse_lost_picture(self, inputs: dict[str, Any]) -> None:
        """Raise where a picture did not make it into the model's inputs."""
        pictures = any(name.startswith(("pixel_values", "image")) for name in inputs)
        tokens = image_token_ids(without_peft(self.model))
        ids = inputs["input_ids"]
        placed = torch.isin(ids, torch.tensor(tokens, device=ids.device)).any(dim=1).all() if tokens else True
        if not pictures or not placed:
            raise ValueError(
                "The prompt has no place for the picture, which would be lost. Leave the placeholder out to have it "
                "set, or write the model's own into the prompt."
            )


class RudderImageTextToTextPipeline(ImageTextToTextPipeline):
    """transformers' pipeline of that name for steered models: it takes a lone string for a picture, not for text."""

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        """As `ImageTextToTextPipeline`, but a picture without text is described instead of being taken as text."""
        alone = images if isinstance(images, (list, tuple)) else [images]
        if text is None and images is not None and all(isinstance(each, str) for each in alone):
            raise ValueError(
                "Pictures are given without text. Pass text=..., or a chat; "
                'pipeline("image-to-text", ...) describes pictures without a prompt.'
            )
        return super().__call__(images, text, **kwargs)

    def check_model_type(self, supported_models: Any) -> None:
        """Nothing to check: steering refuses models that it does not know."""


def encode(processor: Any, prompts: list[ImagePrompt]) -> dict[str, Any]:
    """Inputs of `generate` for a batch of prompts, padded on the left."""
    padding = _padding(processor) if len(prompts) > 1 else {}
    token = _image_token(processor)
    raw = all(prompt.messages is None and token is not None and token in prompt.text for prompt in prompts)
    chats = [prompt.messages or _as_chat(prompt) for prompt in prompts]
    if not raw and (getattr(processor, "chat_template", None) or any(prompt.messages for prompt in prompts)):
        encoded = processor.apply_chat_template(
            chats,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs=padding,
        )
        return dict(encoded)
    texts = [prompt.text for prompt in prompts]
    # BLIP's processors set the placeholders themselves.
    if not raw and token is not None and not hasattr(processor, "num_query_tokens"):
        texts = [f"{token}\n{text}" for text in texts]
    pictures = [[prompt.image] for prompt in prompts]
    return dict(processor(images=pictures, text=texts, return_tensors="pt", **padding))


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _padding(processor: Any) -> dict[str, Any]:
    """Generation needs its prompts to end together. A Q-Former's own prompt must not be moved, so that it is left."""
    side = getattr(getattr(processor, "tokenizer", None), "padding_side", "left")
    moved = {} if side == "left" or hasattr(processor, "qformer_tokenizer") else {"padding_side": "left"}
    return {"padding": True, **moved}


def _image_token(processor: Any) -> str | None:
    """What stands for a picture in a prompt."""
    token = getattr(processor, "image_token", None)
    return None if token is None else str(getattr(token, "content", token))


def _as_chat(prompt: ImagePrompt) -> list[dict[str, Any]]:
    content = [{"type": "image", "image": prompt.image}, {"type": "text", "text": prompt.text}]
    return [{"role": "user", "content": content}]


def _has_picture(messages: Any) -> bool:
    contents = [message["content"] for message in messages]
    return any(
        isinstance(part, dict) and part.get("type") in ("image", "video")
        for content in contents
        if isinstance(content, list)
        for part in content
    )
