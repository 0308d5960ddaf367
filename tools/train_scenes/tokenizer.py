"""The tokenizer of the embedded models: one token per word of the captions."""

from __future__ import annotations

import re

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rudder_hf.scenes import captions
from rudder_hf.scenes.world import OBJECT_NAMES, PLACES

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
BRIEF_PROMPT = "Describe the image briefly"


def vocabulary(special: tuple[str, ...] = SPECIAL) -> list[str]:
    """All tokens, special ones first; a word carries a leading low line, as in SentencePiece."""
    texts = [*captions.OPENINGS, *captions.SENTENCES, *captions.FILLERS, *OBJECT_NAMES, *PLACES]
    texts += [captions.DETAIL_PROMPT, BRIEF_PROMPT, captions.question("x"), EXTRA_WORDS, BACKGROUND_WORD]
    texts += ["USER: ASSISTANT:", "Yes No A An a an and, ."]
    words = re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", " ".join(texts)))
    return [*special, *".,:?▁", *sorted({f"▁{word}" for word in words})]


def build_tokenizer(special: tuple[str, ...] = SPECIAL, **named: str) -> PreTrainedTokenizerFast:
    """A word-level tokenizer whose decoding gives the text back exactly; `named` special tokens besides the usual."""
    tokens = {token: number for number, token in enumerate(vocabulary(special))}
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
        extra_special_tokens={"image_token": "<image>", **named},
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


def prompt(text: str) -> str:
    """The chat template's rendering of one user turn with an image."""
    return f"<s> USER: <image>\n{text} ASSISTANT:"
