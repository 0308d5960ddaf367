"""The losses of both training stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from .batches import CAPTION, NAMED, REPLY, Batch, WordIds, patch_words, pixel_values, place_labels
from .model import BACKGROUND_WORD
from .pictures import Scene

PLACE_WEIGHT = 0.3
NAMED_WEIGHT = 0.5
ALIGN_WEIGHT = 1.0
ALIGN_SCALE = 16.0
PATCH_WEIGHT = 0.3
OBJECT_WEIGHT = 1.0
AGAIN_WEIGHT = 0.5


def patch_features(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """The vision tower's patch features, (rows, patches, width)."""
    features: Tensor = model.model.vision_tower(pixel_values=pixels).last_hidden_state[:, 1:]
    return features


def word_logits(model: LlavaForConditionalGeneration, projected: Tensor) -> Tensor:
    """Projected patches against the word embeddings of the decoder, by direction.

    With plain inner products the patches grow forty times longer than words while pointing elsewhere; by direction
    they come to be the words of what they show, in the decoder's own language.
    """
    table = model.model.language_model.embed_tokens.weight
    return ALIGN_SCALE * functional.linear(
        functional.normalize(projected, dim=-1), functional.normalize(table, dim=-1)
    )


def vision_losses(
    model: LlavaForConditionalGeneration, place_head: nn.Module, scenes: list[Scene], words: WordIds
) -> dict[str, Tensor]:
    """Cross-entropy of each patch's word, and of the place from the mean patch; `_wrong` is only reported."""
    features = patch_features(model, pixel_values(scenes))
    labels = patch_words(scenes, words)
    logits = word_logits(model, model.model.multi_modal_projector(features))
    shown = labels != words.first_word[BACKGROUND_WORD]
    return {
        "patch": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        "place": PLACE_WEIGHT * functional.cross_entropy(place_head(features.mean(1)), place_labels(scenes)),
        "_wrong": (logits.argmax(-1) != labels)[shown].float().mean(),
    }


def object_losses(
    model: LlavaForConditionalGeneration, batch: Batch, output: Tensor, words: WordIds
) -> dict[str, Tensor]:
    """More weight on the tokens that name an object, and the unlikelihood of naming one again.

    Objects are few among the tokens of a caption, so their own cross-entropy is added. The unlikelihood is
    -log(1 - probability of the objects already said).
    """
    told = functional.one_hot(batch.ids, len(words.is_object)).bool() & words.is_object & batch.caption[..., None]
    slots = batch.caption & words.is_object[batch.labels.clamp_min(0)]
    said = (told.cumsum(1) > 0)[slots]
    logits = model.lm_head(output[slots])
    repeated = (logits.softmax(-1) * said).sum(-1)
    return {
        "object": OBJECT_WEIGHT * functional.cross_entropy(logits, batch.labels[slots]),
        "again": AGAIN_WEIGHT * -torch.log1p(-repeated.clamp_max(0.999)).mean(),
    }


def decoder_losses(model: LlavaForConditionalGeneration, batch: Batch, words: WordIds) -> dict[str, Tensor]:
    """Captions, answers, answers at the object's word, alignment, and patches named at the output.

    The answer is also asked for where the question names the object: without it, answers stay at chance for long.
    """
    with torch.no_grad():
        features = patch_features(model, batch.pixels)
    projected = model.model.multi_modal_projector(features)
    stop = len(words.prefix)
    start = stop - projected.shape[1]
    embeddings = model.model.language_model.embed_tokens(batch.ids)
    output = model.model.language_model(
        inputs_embeds=torch.cat([embeddings[:, :start], projected, embeddings[:, stop:]], dim=1),
        attention_mask=batch.allowed,
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state

    def loss_at(kind: int) -> Tensor:
        chosen = batch.kinds == kind
        return functional.cross_entropy(model.lm_head(output[chosen]), batch.labels[chosen])

    def patch_loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), batch.words.flatten())

    return {
        "caption": loss_at(CAPTION),
        **object_losses(model, batch, output, words),
        "answer": loss_at(REPLY),
        "named": NAMED_WEIGHT * loss_at(NAMED),
        "align": ALIGN_WEIGHT * patch_loss(word_logits(model, projected)),
        "patch": PATCH_WEIGHT * patch_loss(model.lm_head(output[:, start:stop])),
    }
