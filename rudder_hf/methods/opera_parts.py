"""Parts of OPERA's search: beams that it can go back to, rows of the model's arguments, scores of attention."""

from __future__ import annotations

import copy
import math
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import GenerateBeamDecoderOnlyOutput

from .layers import Attention, attention_scores

# A column's product of weights is multiplied by this, and the result is at most what float16 holds.
_SCORE_UNIT = 1e-7
_GREATEST_SCORE = 65504.0


@dataclass(frozen=True)
class Sequence:
    """A sequence that ended.

    Attributes:
        score: Sum of its log-probabilities, divided by its length to the power of the length penalty.
        ids: Prompt and answer.
        parents: For each answer token the beam that it came from.
    """

    score: float
    ids: Tensor
    parents: Tensor


@dataclass(frozen=True)
class Beams:
    """Beams of one prompt between two steps, as in transformers' beam search; tensors are never written to.

    Attributes:
        ids: Prompt and answer of each running beam, (beams, length).
        scores: Sums of their log-probabilities, (beams,).
        parents: For each answer token the beam that it came from, (beams, tokens).
        ended: Sequences that ended, best first, at most as many as beams.
        done: Whether nothing can become better.
    """

    ids: Tensor
    scores: Tensor
    parents: Tensor
    ended: tuple[Sequence, ...] = ()
    done: bool = False

    @classmethod
    def first(cls, prompt_ids: Tensor) -> Beams:
        """The beams before the first step, from the prompt's ids, (beams, length)."""
        # Only the first beam counts at first: all are the same.
        scores = torch.full((len(prompt_ids),), -1e9, device=prompt_ids.device)
        scores[0] = 0.0
        return cls(prompt_ids, scores, prompt_ids[:, :0])

    def step(self, log_probs: Tensor, config: Any, criteria: Any) -> Beams:
        """Choose the next tokens.

        Args:
            log_probs: Of the next token, (beams, vocabulary).
            config: The call's generation config.
            criteria: Its stopping criteria.
        """
        (width, vocabulary), eos = log_probs.shape, config._eos_token_tensor
        # So many that enough go on even where the best all end.
        kept = max(2, 1 + (0 if eos is None else len(eos))) * width
        scores, places = (self.scores[:, None] + log_probs).flatten().topk(kept)
        chosen = places // vocabulary
        ids = torch.cat([self.ids[chosen], places[:, None] % vocabulary], dim=1)
        parents = torch.cat([self.parents[chosen], chosen[:, None]], dim=1)
        stops = criteria(ids, None)
        length, penalty = parents.shape[1], config.length_penalty
        new = [Sequence(float(scores[i]) / length**penalty, ids[i], parents[i]) for i in range(width) if stops[i]]
        ended = tuple(sorted([*self.ended, *new], key=lambda sequence: sequence.score, reverse=True)[:width])
        running, goes_on = (scores + stops * -1e9).topk(width)
        if config.early_stopping == "never" and penalty > 0:
            length = config.max_length - (ids.shape[1] - length)  # the longest answer
        full = len(ended) == width
        beaten = full and (config.early_stopping is True or float(running[0]) / length**penalty <= ended[-1].score)
        return Beams(ids[goes_on], running, parents[goes_on], ended, bool(stops.all()) or beaten)


def take_rows(model_kwargs: dict[str, Any], rows: Tensor, count: int) -> dict[str, Any]:
    """The arguments of the model for some of its `count` rows, which may repeat, with a cache of their own."""
    taken = dict(model_kwargs)
    for name, value in model_kwargs.items():
        if name == "past_key_values":
            # Selecting makes new tensors, so that copies of the layers that share the old ones are enough.
            taken[name] = copy.copy(value)
            taken[name].layers = [copy.copy(layer) for layer in value.layers]
            taken[name].batch_select_indices(rows)
        elif name == "position_ids" and value.dim() == 3:  # several positions for each token
            taken[name] = value.index_select(1, rows)
        elif isinstance(value, Tensor) and value.dim() and value.shape[0] == count:
            taken[name] = value.index_select(0, rows)
    return taken


def gather(results: list[Beams], config: Any) -> Any:
    """The best sequences of all prompts, as transformers' beam search returns them."""
    best = [(number, sequence) for number, beams in enumerate(results) for sequence in beams.ended]
    width, returned = config.num_beams, config.num_return_sequences
    best = [entry for place, entry in enumerate(best) if place % width < returned]
    eos = config._eos_token_tensor
    fill = -1 if eos is None else int(config._pad_token_tensor or eos[0])
    sequences = pad_sequence([sequence.ids for _, sequence in best], batch_first=True, padding_value=fill)
    if not config.return_dict_in_generate:
        return sequences
    # Beams are numbered through all prompts.
    parents = [sequence.parents + number * width for number, sequence in best]
    return GenerateBeamDecoderOnlyOutput(
        sequences=sequences,
        sequences_scores=torch.tensor([sequence.score for _, sequence in best], device=sequences.device),
        beam_indices=pad_sequence(parents, batch_first=True, padding_value=-1).int(),
    )


class AttentionRecorder:
    """Keeps the attention weights of the last forward.

    Attributes:
        watching: Whether to keep them; not those of the prefill, which are many.
        weights: For each query its greatest weight over heads, normed to sum 1, (rows, queries, keys).
    """

    def __init__(self) -> None:
        self.watching = False
        self.weights: Tensor | None = None
        self._thread = threading.get_ident()

    def around(self, original: Attention) -> Attention:
        """An attention function that also keeps the weights."""

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
        ) -> tuple[Tensor, Any]:
            if self.watching and threading.get_ident() == self._thread:
                scores = attention_scores(query, key, attention_mask, kwargs)
                weights = torch.softmax(scores, dim=-1).amax(dim=1)
                self.weights = weights / weights.sum(dim=-1, keepdim=True)
            return original(module, query, key, value, attention_mask, **kwargs)

        return attend

    def take(self) -> Tensor:
        """The weights of the last forward.

        Raises:
            RuntimeError: The forward did not pass through the watched layer.
        """
        if self.weights is None:
            raise RuntimeError("opera did not see the last layer's attention: the model does not call it as expected.")
        weights, self.weights = self.weights, None
        return weights


def column_sums(block: Tensor, scale: float) -> Tensor:
    """The sum log prod_{i >= j} scale a_ij of each column j of attention among response tokens, (rows, tokens).

    Args:
        block: (rows, tokens, tokens), of which the lower triangle counts.
        scale: Factor of the weights.
    """
    lower = torch.ones(block.shape[1:], dtype=torch.bool, device=block.device).tril()
    return torch.where(lower, torch.log(scale * block), 0.0).sum(dim=1)


def add_row(sums: Tensor, row: Tensor, scale: float) -> Tensor:
    """`column_sums` with one more response token.

    Args:
        sums: (..., tokens).
        row: The new token's weights on all response tokens, itself included, (..., tokens + 1).
        scale: Factor of the weights.
    """
    return torch.log(scale * row) + torch.nn.functional.pad(sums, (0, 1))


def column_score(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest s_j = 1e-7 prod_{i >= j} scale a_ij, and its column j, along the last dimension."""
    greatest, column = sums.max(dim=-1)
    return (greatest + math.log(_SCORE_UNIT)).exp().clamp_max(_GREATEST_SCORE), column
