"""OPERA: beam search that penalises over-trusted summary tokens and goes back behind them."""

from __future__ import annotations

import copy
import functools
import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import GenerateBeamDecoderOnlyOutput

from .attention import Attention, around_attention, attention_scores
from .base import grid, number
from .branches import image_positions
from .runs import LoopMethod, Run

# Options that OPERA's own token loop does not know.
_REFUSED_OPTIONS = {
    "do_sample": "it is a beam search without sampling",
    "constraints": "it is no constrained beam search",
    "force_words_ids": "it is no constrained beam search",
    "streamer": "beams change earlier tokens",
    "stop_strings": "transformers does not hand custom loops the tokenizer",
    "output_logits": "prompts are searched one after the other",
    "output_attentions": "prompts are searched one after the other",
    "output_hidden_states": "prompts are searched one after the other",
}
# What a token gets that is no candidate, or that was chosen before the search went back.
_REJECTED = -999.0
# Response tokens whose candidates are judged by their attention to the image, and before which it never goes back.
_FIRST_TOKENS = 10
# A column's product of weights is multiplied by this, and the result is at most what float16 holds.
_SCORE_UNIT = 1e-7
_GREATEST_SCORE = 65504.0


@dataclass(frozen=True)
class Opera(LoopMethod):
    """Over-trust penalty and retrospection-allocation (Huang et al., CVPR 2024), on beam search.

    At each step the `candidates` likeliest tokens of each beam are forwarded to see the last layer's attention (the
    greatest over heads, each row normed to sum 1). Column j of the attention among response tokens gets the score
    s_j = 1e-7 prod_{i >= j} scale * a_ij; a candidate's logit loses `penalty` times the greatest s_j, or, within the
    first 10 response tokens, gains `penalty` times its attention to the image. Other tokens get the logit -999. Where
    the same column j >= 10 has won more than `threshold` times in every beam, the search goes back to the token after
    it, which is chosen anew among the others (at most `candidates` times for a position, then one position earlier).

    Beams only, as published (with 5 of them). The prompts of a batch are prefilled together and searched one after the
    other, because each goes back at its own time.

    Unlike the published code: image tokens are exactly those of the row, where the code counts one more and has one
    range for all rows; scores are float32 and at most 65504, where the code's float16 overflows to infinity; what won
    before follows its beam, where the code leaves it in the beam's place; going back re-reads the answer on the cached
    prompt, where the code runs the whole prompt again (the same result).

    Attributes:
        candidates: Tokens of each beam that are tried (the published N).
        scale: Factor of the attention weights.
        threshold: How often a column may win before the search goes back; None never goes back.
        penalty: Weight of the penalty.
    """

    name = "opera"
    decodings = ("beam",)
    searched = (
        {"candidates": 1, "threshold": 25, "penalty": 1.0},  # the published "efficient" setting
        *grid(candidates=(5,), threshold=(15,), penalty=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
    )

    candidates: int = number(5, 1, 1e6)
    scale: float = number(50.0, 1e-6, 1e6)
    threshold: int | None = number(15, 0, 1e6)
    penalty: float = number(1.0, 0, 1e6)

    @property
    def forwards_per_token(self) -> float:
        """The token itself and the candidates for the next one; tokens that are taken back cost again."""
        return 1.0 + self.candidates

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`: the token loop is replaced."""
        if run.beams == 1:
            raise ValueError(f"{self.refuses('greedy')}: pass num_beams (published with 5).")
        if run.option("num_beam_groups", 1) > 1:
            raise ValueError("opera is no group beam search: unset num_beam_groups.")
        run.refuse(_REFUSED_OPTIONS)
        if run.option("use_cache", True) is False or run.option("cache_implementation") not in (None, "dynamic"):
            raise ValueError("opera needs the dynamic cache: unset use_cache and cache_implementation.")
        backbone, kept = run.backbone, list[Tensor]()
        image = image_positions(backbone.model, run.call)
        around = functools.partial(keep_weights, kept)
        run.exits.enter_context(around_attention(backbone.loop, [backbone.layers[-1]], around))

        def search_all(
            loop: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
            **model_kwargs: Any,
        ) -> Any:  # fmt: skip
            inputs = loop.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
            logits = loop(**inputs, return_dict=True).logits[:, -1].float()
            results = []
            of_prompts = torch.arange(len(input_ids), device=input_ids.device).view(len(image), -1)
            for rows, at_image in zip(of_prompts, image.to(input_ids.device), strict=True):
                kwargs = take_rows(model_kwargs, rows, len(input_ids))
                search = OperaSearch(self, loop, kept, input_ids[rows], kwargs, logits[rows], at_image)
                results.append(search.run(generation_config, logits_processor, stopping_criteria))
            return gather(results, generation_config)

        run.arguments["custom_generate"] = search_all


@dataclass(frozen=True)
class Beams:
    """Beams of one prompt between two steps, as in transformers' beam search; tensors are never written to.

    Attributes:
        ids: Prompt and answer of each running beam, (beams, length).
        scores: Sums of their log-probabilities, (beams,).
        parents: For each answer token the beam that it came from, (beams, tokens).
        won: For each answer token the column that won when it was chosen, (beams, tokens).
        ended: Sequences that ended, best first, at most as many as beams: score (sum of log-probabilities, divided by
            the length to the power of the length penalty), ids and parents of each.
        done: Whether nothing can become better.
    """

    ids: Tensor
    scores: Tensor
    parents: Tensor
    won: Tensor
    ended: tuple[tuple[float, Tensor, Tensor], ...] = ()
    done: bool = False

    @classmethod
    def first(cls, prompt_ids: Tensor) -> Beams:
        """The beams before the first step, from the prompt's ids, (beams, length)."""
        # Only the first beam counts at first: all are the same.
        scores = torch.full((len(prompt_ids),), -1e9, device=prompt_ids.device)
        scores[0] = 0.0
        return cls(prompt_ids, scores, prompt_ids[:, :0], prompt_ids[:, :0])

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
        new = [(float(scores[i]) / length**penalty, ids[i], parents[i]) for i in range(width) if stops[i]]
        ended = tuple(sorted([*self.ended, *new], key=lambda sequence: sequence[0], reverse=True)[:width])
        running, goes_on = (scores + stops * -1e9).topk(width)
        if config.early_stopping == "never" and penalty > 0:
            length = config.max_length - (ids.shape[1] - length)  # the longest answer
        full = len(ended) == width
        beaten = full and (config.early_stopping is True or float(running[0]) / length**penalty <= ended[-1][0])
        done = bool(stops.all()) or beaten
        return Beams(ids[goes_on], running, parents[goes_on], self.won[chosen[goes_on]], ended, done)


class OperaSearch:
    """The search for one prompt.

    Args:
        settings: The method.
        loop: The module that is called for each token.
        kept: Where the last layer's attention weights are put by each forward.
        prompt_ids: (beams, length).
        prompt_kwargs: Arguments of the model after the prefill, before any token.
        logits: Of the next token, (beams, vocabulary).
        image: True at the prompt's image tokens, (length,).
    """

    def __init__(
        self, settings: Opera, loop: Any, kept: list[Tensor], prompt_ids: Tensor, prompt_kwargs: dict[str, Any],
        logits: Tensor, image: Tensor,
    ) -> None:  # fmt: skip
        self.settings, self.loop, self.kept = settings, loop, kept
        self.prompt_kwargs, self.prompt_length = prompt_kwargs, prompt_ids.shape[1]
        self.logits, self.image = logits, image
        self.beams = Beams.first(prompt_ids)
        self.model_kwargs = self._after_prompt(1)
        # Sums over columns of attention among response tokens.
        self.sums = torch.zeros_like(logits[:, :0])
        # The beams before each token was chosen; how often the search went back to a token, and what it chose before.
        self.past: list[Beams] = []
        self.returns: dict[int, int] = {}
        self.rejected: dict[int, Tensor] = {}

    @property
    def tokens(self) -> int:
        """Number of response tokens so far."""
        return len(self.past)

    def run(self, config: Any, processors: Any, criteria: Any) -> Beams:
        """Search until the beams are done, with a call's generation config, logits processors, stopping criteria."""
        while True:
            scores = self._penalised()
            place = self._place_to_return()
            if place is not None:
                scores = self._go_back(place)
            log_probs = processors(self.beams.ids, log_softmax(scores, dim=-1))
            self.past.append(self.beams)
            self.beams = self.beams.step(log_probs, config, criteria)
            if self.beams.done:
                return self.beams
            self._forward(self.beams.parents[:, -1])

    def _penalised(self) -> Tensor:
        """Logits with the candidates' penalty, everything else rejected, (beams, vocabulary)."""
        beams, count = len(self.logits), min(self.settings.candidates, self.logits.shape[1])
        values, candidates = self.logits.topk(count, dim=-1)
        # Attention weights of each candidate if it were the next token, (beams, candidates, positions).
        rows = torch.arange(beams, device=candidates.device).repeat_interleave(count)
        ids = torch.cat([self.beams.ids[rows], candidates.reshape(-1, 1)], dim=1)
        weights = self._call(ids, 1, take_rows(self.model_kwargs, rows, beams))[1].view(beams, count, -1)
        sums = self.sums[:, None].expand(-1, count, -1)
        phi, columns = column_score(add_row(sums, weights[..., self.prompt_length :], self.settings.scale))
        won = torch.cat([self.beams.won, columns.mode(dim=-1).values[:, None]], dim=1)
        self.beams = replace(self.beams, won=won)
        if self.tokens + 1 <= _FIRST_TOKENS:
            phi = -weights[..., : self.prompt_length][..., self.image].sum(dim=-1)
        penalised = torch.full_like(self.logits, _REJECTED)
        return penalised.scatter(-1, candidates, values - self.settings.penalty * phi)

    # Forwards

    def _call(self, ids: Tensor, length: int, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Forward the last tokens: logits of the next one, and the tokens' attention, (rows, length, positions)."""
        inputs = self.loop.prepare_inputs_for_generation(ids, next_sequence_length=length, **kwargs)
        self.kept.clear()
        logits = self.loop(**inputs, return_dict=True).logits[:, -1].float()
        if not self.kept:
            raise RuntimeError("opera did not see the last layer's attention: the model does not call it as expected.")
        return logits, self.kept.pop()

    def _after(self, kwargs: dict[str, Any], new: int) -> dict[str, Any]:
        """Arguments with masks and positions for so many more tokens."""
        longer: dict[str, Any] = self.loop._update_model_kwargs_for_generation({}, dict(kwargs), num_new_tokens=new)
        return longer

    def _after_prompt(self, new: int) -> dict[str, Any]:
        """Arguments for the first tokens, with a copy of the prompt's cache."""
        rows = torch.arange(len(self.logits), device=self.logits.device)
        return self._after(take_rows(self.prompt_kwargs, rows, len(rows)), new)

    def _forward(self, parents: Tensor) -> None:
        """Forward the tokens that were just chosen, each after the beam that it came from."""
        self.model_kwargs["past_key_values"].reorder_cache(parents)
        self.logits, weights = self._call(self.beams.ids, 1, self.model_kwargs)
        self.sums = add_row(self.sums[parents], weights[:, 0, self.prompt_length :], self.settings.scale)
        self.model_kwargs = self._after(self.model_kwargs, 1)

    # Going back

    def _place_to_return(self) -> int | None:
        """Index of the response token that is to be chosen anew, if any."""
        threshold, won = self.settings.threshold, self.beams.won
        if threshold is None:
            return None
        column = int(won[:, -1].mode().values)
        if column < _FIRST_TOKENS or not bool(((won == column).sum(dim=1) > threshold).all()):
            return None
        for place in (column + 1, column):
            if self.returns.get(place, 0) < self.settings.candidates:
                # The token at that place must have been chosen already.
                return place if place < self.tokens else None
        return None

    def _go_back(self, place: int) -> Tensor:
        """Restore the search as it was before token `place`, without the tokens that it chose there before."""
        self.returns[place] = self.returns.get(place, 0) + 1
        after = [*self.past, self.beams][place + 1]
        chosen = torch.stack([after.parents[:, -1], after.ids[:, -1]], dim=1)
        self.rejected = {index: pairs for index, pairs in self.rejected.items() if index <= place}
        self.rejected[place] = torch.cat([self.rejected.get(place, chosen[:0]), chosen])
        self.beams, self.past = self.past[place], self.past[:place]
        self._read_again()
        scores = self.logits.clone()
        beam, token = self.rejected[place].unbind(dim=1)
        scores[beam, token] = _REJECTED
        return scores

    def _read_again(self) -> None:
        """Rebuild the cache of the restored beams: the prompt's, and their response tokens in one forward."""
        kwargs = self._after_prompt(self.tokens)
        self.logits, weights = self._call(self.beams.ids, self.tokens, kwargs)
        self.sums = column_sums(weights[:, :, self.prompt_length :], self.settings.scale)
        self.model_kwargs = self._after(kwargs, 1)


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
    ended = [beams.ended[: config.num_return_sequences] for beams in results]
    scores, ids, parents = zip(*(sequence for of_prompt in ended for sequence in of_prompt), strict=True)
    eos = config._eos_token_tensor
    fill = -1 if eos is None else int(config._pad_token_tensor or eos[0])
    sequences = pad_sequence(list(ids), batch_first=True, padding_value=fill)
    if not config.return_dict_in_generate:
        return sequences
    # Beams are numbered through all prompts.
    offsets = [number * config.num_beams for number, of_prompt in enumerate(ended) for _ in of_prompt]
    numbered = [beams + offset for beams, offset in zip(parents, offsets, strict=True)]
    return GenerateBeamDecoderOnlyOutput(
        sequences=sequences,
        sequences_scores=torch.tensor(scores, device=sequences.device),
        beam_indices=pad_sequence(numbered, batch_first=True, padding_value=-1).int(),
    )


def keep_weights(kept: list[Tensor], original: Attention) -> Attention:
    """An attention function that also keeps this thread's weights, but not those of a prefill, which are many.

    Of each query its greatest weights over heads are kept, normed to sum 1, (rows, queries, keys).
    """
    thread = threading.get_ident()

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        if query.shape[2] < key.shape[2] and threading.get_ident() == thread:
            weights = torch.softmax(attention_scores(query, key, attention_mask, kwargs), dim=-1).amax(dim=1)
            kept.append(weights / weights.sum(dim=-1, keepdim=True))
        return original(module, query, key, value, attention_mask, **kwargs)

    return attend


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
    return torch.log(scale * row) + pad(sums, (0, 1))


def column_score(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest s_j = 1e-7 prod_{i >= j} scale a_ij, and its column j, along the last dimension."""
    greatest, column = sums.max(dim=-1)
    return (greatest + math.log(_SCORE_UNIT)).exp().clamp_max(_GREATEST_SCORE), column
