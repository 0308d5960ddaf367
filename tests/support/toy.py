"""A model for tests of the commands: a tiny LLaVA with random weights and a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

WIDTH, VOCABULARY = 32, 128
IMAGE_SIZE, PATCH_SIZE = 32, 8
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2
LAYER = 2  # to steer

_SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<unk>"]
_WORDS = (
    "a an and apple are at bag ball banana bear bed bench bicycle bird black blue boat book bottle bowl box bread "
    "bridge brown bus cake car cat chair child clock close cloud cow cup dark desk dog door elephant face fence "
    "field fire fish floor flower fork glass grass green grey hand hat he her his horse house image in is it "
    "keyboard kite lake lamp large left light man many mountain mouse near of old on orange oven over person "
    "phone picture pink pizza plate purple red right river road room round sand sea sheep she shelf shirt shoe "
    "sign sink sky small snow sofa spoon stands street sun table tall the there this tie train tree truck two "
    "umbrella under vase wall water white window with woman yellow young"
)
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def words() -> list[str]:
    """The words that the tokenizer knows."""
    return _WORDS.split()[: VOCABULARY - len(_SPECIAL)]


def toy_model(seed: int = 0, hidden_size: int = WIDTH, initializer_range: float = 0.3) -> PreTrainedModel:
    """A LLaVA of four layers whose random weights are large enough for answers that vary and do not end."""
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE, initializer_range=initializer_range,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, initializer_range=initializer_range,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, image_seq_length=IMAGE_TOKENS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def random_prompt(tokens: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs of the toy's `generate`: a random image and random words, `tokens` positions in all."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(len(_SPECIAL), VOCABULARY, (1, tokens - 1 - IMAGE_TOKENS), generator=generator)
    input_ids = torch.cat([torch.tensor([[1] + [3] * IMAGE_TOKENS]), text], dim=1)
    pixels = torch.randn(1, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "pixel_values": pixels}


def word_tokenizer(names: Sequence[str], special: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows one id per word, in the order of `names`."""
    words = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=list(special),
    )  # fmt: skip


def toy_processor() -> Any:
    """A LLaVA processor with a tokenizer that knows one id per word."""
    tokenizer = word_tokenizer([*_SPECIAL, *_WORDS.split()][:VOCABULARY], ["<image>"])
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=side, crop_size=side),
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        # The vision tower's class token, which the strategy above takes away again.
        num_additional_image_tokens=1,
        chat_template=_CHAT_TEMPLATE,
    )
