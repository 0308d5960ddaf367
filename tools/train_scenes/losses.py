"""The losses of all training stages.

A pretrained language model predicts words at every position, and its later layers can be read as words through the
final norm and unembedding (the "logit lens"). A model trained on answers alone has no reason to write words at the
image's positions; the losses on intermediate layers give it one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rudder_hf.scenes.images import Scene

from .batches import (
    CAPTION,
    NAMED,
    REPLY,
    Batch,
    WordIds,
    patch_words,
    pixel_values,
    place_labels,
)
from .families import Family
from .tokenizer import BACKGROUND_WORD

PLACE_WEIGHT = 0.3
NAMED_WEIGHT = 0.5
ALIGN_WEIGHT = 1.0
ALIGN_SCALE = 16.0
PATCH_WEIGHT = 0.3
OBJECT_WEIGHT = 2.0
LENS_WEIGHT = 0.5
PATCHES_FROM = 4  # layers, counted from 1, after which image positions name their patch
SLOTS_FROM = 8  # layers after which the next object has its probabilities already


def word_logits(table: Tensor, projected: Tensor) -> Tensor:
    """Projected patches against the word embeddings of the decoder, by direction.

    With plain inner products the patches grow forty times longer than words while pointing elsewhere; by direction
    they come to be the words of what they show, in the decoder's own language.
    """
    return ALIGN_SCALE * functional.linear(
        functional.normalize(projected, dim=-1), functional.normalize(table, dim=-1)
    )


def vision_losses(
    family: Family, model: PreTrainedModel, place_head: nn.Module, scenes: list[Scene], words: WordIds
) -> dict[str, Tensor]:
    """Cross-entropy of each patch's word, and of the place from the mean patch; `_wrong` is only reported."""
    features = family.features(model, pixel_values(scenes))
    labels = patch_words(scenes, words)
    logits = word_logits(model.get_input_embeddings().weight, family.project(model, features))
    shown = labels != words.first_word[BACKGROUND_WORD]
    return {
        "patch": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        "place": PLACE_WEIGHT * functional.cross_entropy(place_head(features.mean(1)), place_labels(scenes)),
        "_wrong": (logits.argmax(-1) != labels)[shown].float().mean(),
    }


def object_divergence(model: Any, batch: Batch, output: Tensor) -> Tensor:
    """Divergence from the probabilities that the captions' objects were drawn from.

    The captions are drawn from known probabilities, so the model learns from these instead of from one draw of them:
    the same optimum with far less noise, and its value says how far the model still is from it.
    """
    logits = model.lm_head(output[batch.slots]).log_softmax(-1)
    return functional.kl_div(logits, batch.objects, reduction="batchmean")


def lens_losses(
    states: Sequence[Tensor], patch_loss: Callable[[Tensor], Tensor], object_loss: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the mean loss of patches and of objects over the layers that are read.

    Args:
        states: The hidden states after each layer, with the final norm applied.
        patch_loss: Loss of naming the patches from the states of one layer.
        object_loss: Loss of the next objects from the states of one layer.
    """
    patches = torch.stack([patch_loss(state) for state in states[PATCHES_FROM - 1 :]])
    objects = torch.stack([object_loss(state) for state in states[SLOTS_FROM - 1 : -1]])
    return {"lens_patch": LENS_WEIGHT * patches.mean(), "lens_object": LENS_WEIGHT * objects.mean()}


def decoder_losses(family: Family, model: Any, batch: Batch, words: WordIds, lens: bool = False) -> dict[str, Tensor]:
    """Captions, answers, answers at the object's word, alignment, and patches named at the output.

    The answer is also asked for where the question names the object: without it, answers stay at chance for long.
    """
    with torch.no_grad():
        features = family.features(model, batch.pixels)
    projected = family.project(model, features)
    start, stop = words.image_span.start, words.image_span.stop
    table = model.get_input_embeddings()
    embeddings = table(batch.ids)
    decoder: Any = family.decoder(model)
    outputs = decoder(
        inputs_embeds=torch.cat([embeddings[:, :start], projected, embeddings[:, stop:]], dim=1),
        attention_mask=batch.mask,
        position_ids=batch.positions,
        use_cache=False,
        output_hidden_states=lens,
    )
    output = outputs.last_hidden_state

    def loss_at(kind: int) -> Tensor:
        chosen = (batch.kinds == kind) & ~batch.slots
        return functional.cross_entropy(model.lm_head(output[chosen]), batch.labels[chosen])

    def patch_loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), batch.words.flatten())

    def named_patches(states: Tensor) -> Tensor:
        return patch_loss(model.lm_head(states[:, start:stop]))

    losses = {
        "caption": loss_at(CAPTION),
        "object": OBJECT_WEIGHT * object_divergence(model, batch, output),
        "answer": loss_at(REPLY),
        "named": NAMED_WEIGHT * loss_at(NAMED),
        "align": ALIGN_WEIGHT * patch_loss(word_logits(table.weight, projected)),
    }
    if not lens:
        return {**losses, "patch": PATCH_WEIGHT * named_patches(output)}
    states = [*(decoder.norm(state) for state in outputs.hidden_states[1:-1]), output]
    return {**losses, **lens_losses(states, named_patches, lambda state: object_divergence(model, batch, state))}
