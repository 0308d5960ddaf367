"""Beams of one prompt between two steps, one step of transformers' beam search, and parts of caches."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateBeamDecoderOnlyOutput


@dataclass(frozen=True)
class Beams:
    """Running and finished beams of one prompt between two steps; tensors are never written to.

    Shapes are those of transformers' beam search for a batch of one.

    Attributes:
        prompt_length: Number of the prompt's tokens.
        length: Number of tokens so far, the prompt's included.
        running: Sequences that go on, (1, beams, greatest length).
        running_scores: Their scores, (1, beams).
        running_indices: For each of their tokens the beam that it came from, (1, beams, greatest number of tokens).
        sequences: Sequences that ended, best first; `scores` and `indices` as above.
        scores: See `sequences`.
        indices: See `sequences`.
        finished: Which of `sequences` are real, (1, beams).
        improvable: Whether a running sequence may still become better than those that ended, (1, 1).
        stopped: Which of the last step's continuations met a stopping criterion, (1, continuations).
    """

    prompt_length: int
    length: int
    running: Tensor
    running_scores: Tensor
    running_indices: Tensor
    sequences: Tensor
    scores: Tensor
    indices: Tensor
    finished: Tensor
    improvable: Tensor
    stopped: Tensor


def first_beams(prompt_ids: Tensor, config: Any) -> Beams:
    """The beams before the first step.

    Args:
        prompt_ids: (beams, length).
        config: The call's generation config.
    """
    (width, length), device, eos = prompt_ids.shape, prompt_ids.device, config._eos_token_tensor
    # As in transformers, so that the padding of the output is the same.
    fill = -1 if eos is None else int(config._pad_token_tensor or eos[0])
    running = torch.full((1, width, config.max_length), fill, dtype=torch.long, device=device)
    running[0, :, :length] = prompt_ids
    indices = torch.full((1, width, config.max_length - length), -1, dtype=torch.int32, device=device)
    nothing = torch.zeros(1, width, dtype=torch.bool, device=device)
    return Beams(
        prompt_length=length,
        length=length,
        running=running,
        # Only the first beam counts at first: all are the same.
        running_scores=torch.tensor([[0.0] + [-1e9] * (width - 1)], device=device),
        running_indices=indices,
        sequences=running.clone(),
        scores=torch.full((1, width), -1e9, device=device),
        indices=indices.clone(),
        finished=nothing,
        improvable=torch.ones(1, 1, dtype=torch.bool, device=device),
        stopped=nothing,
    )


def beam_step(loop: Any, config: Any, criteria: Any, beams: Beams, log_probs: Tensor) -> Beams:
    """One step of transformers' beam search.

    Args:
        loop: The model, for its beam search.
        config: The call's generation config.
        criteria: Stopping criteria.
        beams: Before the step.
        log_probs: Of the next token, (beams, vocabulary).
    """
    width, eos = beams.running.shape[1], config._eos_token_tensor
    kept = max(2, 1 + (0 if eos is None else len(eos))) * width
    at = {"cur_len": beams.length, "decoder_prompt_len": beams.prompt_length}
    top, sequences, indices = loop._get_top_k_continuations(
        accumulated_log_probs=(log_probs[None] + beams.running_scores[:, :, None]).flatten(1),
        running_sequences=beams.running,
        running_beam_indices=beams.running_indices,
        do_sample=False,
        beams_to_keep=kept,
        num_beams=width,
        batch_size=1,
        **at,
    )
    stopped = criteria(sequences[0, :, : beams.length + 1], None)[None]
    running, running_scores, running_indices = loop._get_running_beams_for_next_iteration(
        topk_log_probs=top,
        topk_running_sequences=sequences,
        topk_running_beam_indices=indices,
        next_token_hits_stopping_criteria=stopped,
        num_beams=width,
    )
    ending = {"length_penalty": config.length_penalty, "early_stopping": config.early_stopping}
    best, scores, best_indices, finished = loop._update_finished_beams(
        sequences=beams.sequences,
        topk_running_sequences=sequences,
        beam_scores=beams.scores,
        topk_log_probs=top,
        beam_indices=beams.indices,
        topk_running_beam_indices=indices,
        is_early_stop_heuristic_unsatisfied=beams.improvable,
        is_sent_finished=beams.finished,
        next_token_hits_stopping_criteria=stopped,
        top_num_beam_mask=torch.arange(kept, device=top.device) < width,
        num_beams=width,
        **at,
        **ending,
    )
    improvable = loop._check_early_stop_heuristic(
        is_early_stop_heuristic_unsatisfied=beams.improvable,
        running_beam_scores=running_scores,
        beam_scores=scores,
        is_sent_finished=finished,
        max_length=config.max_length,
        **{**at, "cur_len": beams.length + 1},
        **ending,
    )
    return Beams(
        prompt_length=beams.prompt_length,
        length=beams.length + 1,
        running=running,
        running_scores=running_scores,
        running_indices=running_indices,
        sequences=best,
        scores=scores,
        indices=best_indices,
        finished=finished,
        improvable=improvable,
        stopped=stopped,
    )


def cache_rows(cache: Any, rows: Tensor | None = None, repeats: int = 1) -> Any:
    """A cache of its own with some rows of another, each repeated; the other stays as it is."""
    part = copy.copy(cache)
    # Selecting makes new tensors, so that copies of the layers that share the old ones are enough.
    part.layers = [copy.copy(layer) for layer in cache.layers]
    if rows is not None:
        part.batch_select_indices(rows)
    if repeats > 1:
        part.batch_repeat_interleave(repeats)
    return part


def _row_dimension(name: str, value: Any, rows: int) -> int | None:
    """Which dimension of an argument of the model counts rows, if any; positions may have several per token."""
    if not isinstance(value, Tensor):
        return None
    if name == "position_ids" and value.dim() == 3:
        return 1
    return 0 if value.dim() and value.shape[0] == rows else None


def select_rows(model_kwargs: dict[str, Any], rows: Tensor, count: int) -> dict[str, Any]:
    """The arguments of the model that belong to some of `count` rows, with their part of the cache."""
    part: dict[str, Any] = {}
    for name, value in model_kwargs.items():
        dimension = _row_dimension(name, value, count)
        if name == "past_key_values":
            part[name] = cache_rows(value, rows)
        else:
            part[name] = value if dimension is None else value.index_select(dimension, rows)
    return part


def repeat_rows(model_kwargs: dict[str, Any], count: int, repeats: int) -> dict[str, Any]:
    """The arguments of the model with each of `count` rows repeated, and a cache of their own."""
    repeated: dict[str, Any] = {}
    for name, value in model_kwargs.items():
        dimension = _row_dimension(name, value, count)
        if name == "past_key_values":
            repeated[name] = cache_rows(value, repeats=repeats)
        else:
            repeated[name] = value if dimension is None else value.repeat_interleave(repeats, dim=dimension)
    return repeated


def gather_results(results: list[Beams], config: Any) -> Any:
    """The best sequences of all prompts, as beam search returns them."""
    returned, width = config.num_return_sequences, results[0].running.shape[1]
    indices = torch.cat([beams.indices[0, :returned] for beams in results])
    longest = int((indices >= 0).sum(dim=1).max())
    sequences = torch.cat([beams.sequences[0, :returned] for beams in results])
    sequences = sequences[:, : results[0].prompt_length + longest]
    if not config.return_dict_in_generate:
        return sequences
    offsets = torch.arange(len(results), device=indices.device).repeat_interleave(returned)[:, None] * width
    return GenerateBeamDecoderOnlyOutput(
        sequences=sequences,
        sequences_scores=torch.cat([beams.scores[0, :returned] for beams in results]),
        beam_indices=torch.where(indices >= 0, indices + offsets, -1)[:, :longest],
    )
