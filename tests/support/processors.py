"""Processors for tiny models of the zoo, with a vocabulary of one word per id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import (
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    Idefics2ImageProcessorPil,
    Idefics2Processor,
    InstructBlipProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from tests.support.toy import word_tokenizer
from tests.support.zoo.base import FIRST_WORD, VOCAB

SIDE = {"height": 16, "width": 16}
WORDS = "please help me describe the image in detail what is this user assistant : ? how many colours"
_TEMPLATE = (
    "{%% for message in messages %%}{{ message['role'] }} : {%% for part in message['content'] %%}"
    "{%% if part['type'] == 'image' %%}%s{%% else %%} {{ part['text'] }} {%% endif %%}{%% endfor %%}{%% endfor %%}"
    "{%% if add_generation_prompt %%}assistant :{%% endif %%}"
)


def tokenizer(special: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose special tokens come first, in the zoo's order, and whose other ids are words."""
    names = ["<pad>", "<s>", "</s>", *special, "<unk>"]
    names += [f"<{index}>" for index in range(len(names), FIRST_WORD)]
    names += WORDS.split()
    names += [f"word{index}" for index in range(len(names), VOCAB)]
    made = word_tokenizer(names, special)
    made.padding_side = "left"
    return made


def _llava() -> Any:
    return LlavaProcessor(
        CLIPImageProcessorPil(size=SIDE, crop_size=SIDE),
        tokenizer(["<image>"]),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE % "<image>",
    )


def _idefics2() -> Any:
    return Idefics2Processor(
        Idefics2ImageProcessorPil(size={"shortest_edge": 16, "longest_edge": 16}, do_image_splitting=False),
        tokenizer(["<image>", "<fake_token_around_image>", "<end_of_utterance>"]),
        image_seq_len=4,
        chat_template=_TEMPLATE % "<image>",
    )


def _instructblip() -> Any:
    own, qformer = tokenizer(["<image>"]), tokenizer(["<image>"])
    # Like BERT's.
    qformer.padding_side = "right"
    return InstructBlipProcessor(BlipImageProcessorPil(size=SIDE), own, qformer, num_query_tokens=4)


# Qwen2.5-VL's needs torchvision, for videos.
PROCESSORS = {"llava": _llava, "idefics2": _idefics2, "instructblip": _instructblip}
"""Makes the processor of a family."""
