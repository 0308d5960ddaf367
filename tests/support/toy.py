"""A model for tests of the commands: a tiny LLaVA with random weights and a vocabulary of its own."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedModel, PreTrainedTokenizerFast

from rudder_hf.benchmark.models import IMAGE_SIZE, PATCH_SIZE, SHAPES, build_model

LAYER = 2  # a layer to steer, and a strength that changes answers
ALPHA_MAX = 12.0

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
    return _WORDS.split()[: SHAPES["tiny"].vocabulary - len(_SPECIAL)]


def toy_model(seed: int = 0) -> PreTrainedModel:
    """A tiny LLaVA whose random weights are large enough for answers that vary."""
    return build_model(SHAPES["tiny"], seed=seed, initializer_range=0.3)


def toy_processor() -> Any:
    """A LLaVA processor with a tokenizer that knows one id per word."""
    size = SHAPES["tiny"].vocabulary
    vocabulary = {word: index for index, word in enumerate([*_SPECIAL, *_WORDS.split()][:size])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )
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
