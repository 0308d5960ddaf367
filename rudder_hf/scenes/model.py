"""The embedded model: a small `LlavaForConditionalGeneration` with its tokenizer and processor."""

from __future__ import annotations

import re

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from . import captions
from .pictures import CELL, GRID, SIDE
from .world import NAMES, PLACES

IMAGE_TOKENS = GRID * GRID
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} ASSISTANT: {% else %} USER: {% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
# Words of other prompts that a user may try; they are in the vocabulary but hardly trained.
EXTRA_WORDS = (
    "What is are in this picture? Which objects can you see here, and where? Who How many Are they any of the "
    "Describe Answer with one word. photo everything short long yes no two three or not it"
)
BACKGROUND_WORD = "scene"
COPY = 0.1  # how much attention copies at the start of training


def vocabulary() -> list[str]:
    """All tokens, special ones first; a word carries a leading low line, as in SentencePiece."""
    texts = [*captions.OPENINGS, *captions.SENTENCES, *captions.FILLERS, *captions.ZONES, *NAMES, *PLACES]
    texts += [captions.DETAIL_PROMPT, captions.BRIEF_PROMPT, captions.question("x"), EXTRA_WORDS, BACKGROUND_WORD]
    texts += ["USER: ASSISTANT:", "Yes No A An a an and, ."]
    words = re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", " ".join(texts)))
    return [*SPECIAL, *".,:?▁", *sorted({f"▁{word}" for word in words})]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer whose decoding gives the text back exactly."""
    tokens = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(WordLevel(tokens, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token."""
    number = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(number, int):
        raise ValueError(f"{token!r} is not one token of this tokenizer")
    return number


def build_processor() -> LlavaProcessor:
    """Tokenizer, image processor (Pillow, no torchvision) and chat template."""
    image_processor = CLIPImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, do_center_crop=False, do_convert_rgb=True, resample=3
    )
    return LlavaProcessor(  # type: ignore[no-untyped-call]
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=CELL,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast, layers: int = 12, width: int = 128) -> LlavaConfig:
    """Twelve decoder layers; the vision tower has one patch per grid cell."""
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width + width // 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.08,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    vision = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=CELL,
        projection_dim=width,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=token_id(tokenizer, "<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=IMAGE_TOKENS,
        tie_word_embeddings=True,
    )


@torch.no_grad()
def _prepare(model: LlavaForConditionalGeneration) -> None:
    """Start the decoder as a clean residual stream in which words can find and copy the patches that show them.

    Half of the heads start with equal queries and keys: they look for tokens like their own. Attention starts by
    copying a little of what it looks at (orthogonal values, their transpose as output), the feed-forward blocks add
    nothing yet. From a plain random start, training stays at the language priors for several times as long.
    """
    for layer in model.model.language_model.layers:
        attention = layer.self_attn
        half = attention.q_proj.weight.shape[0] // 2
        attention.k_proj.weight[:half] = attention.q_proj.weight[:half]
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        attention.o_proj.weight.copy_(COPY * attention.v_proj.weight.T)
        layer.mlp.down_proj.weight.zero_()


def build_model(seed: int, tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """An untrained model with seeded weights."""
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(build_config(tokenizer))
    _prepare(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    return model


def prompt(text: str) -> str:
    """The chat template's rendering of one user turn with a picture."""
    return f"<s> USER: <image>\n{text} ASSISTANT:"
