"""OPERA: beam search that penalises over-trusted summary tokens and goes back behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from .base import check_numbers, grid
from .branches import image_positions
from .layers import around_attention
from .opera_parts import AttentionRecorder, Beams, add_row, column_score, column_sums, gather, take_rows
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

    candidates: int = 5
    scale: float = 50.0
    threshold: int | None = 15
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, candidates=(1, 1e6), scale=(1e-6, 1e6), threshold=(0, 1e6), penalty=(0, 1e6))

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
        backbone, recorder = run.backbone, AttentionRecorder()
        image = image_positions(backbone.model, run.call)
        run.exits.enter_context(around_attention(backbone.loop, [backbone.layers[-1]], recorder.around))
        run.arguments["custom_generate"] = self._loop(recorder, image)

    def _loop(self, recorder: AttentionRecorder, image: Tensor) -> Any:
        """The token loop, as `generate(custom_generate=...)` calls it."""

        def search_all(
            loop: Any,
            input_ids: Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **model_kwargs: Any,
        ) -> Any:
            inputs = loop.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
            logits = loop(**inputs, return_dict=True).logits[:, -1].float()
            recorder.watching = True
            results = []
            of_prompts = torch.arange(len(input_ids), device=input_ids.device).view(len(image), -1)
            for rows, at_image in zip(of_prompts, image, strict=True):
                search = OperaSearch(
                    self,
                    loop,
                    recorder,
                    logits_processor,
                    stopping_criteria,
                    generation_config,
                    input_ids[rows],
                    take_rows(model_kwargs, rows, len(input_ids)),
                    logits[rows],
                    at_image.to(input_ids.device),
                )
                results.append(search.run())
            return gather(results, generation_config)

        return search_all


@dataclass(frozen=True)
class Memory:
    """What the search was before it chose a token: the beams, which columns had won, and the choice."""

    beams: Beams
    won: Tensor
    chosen: Tensor


@dataclass
class OperaSearch:
    """The search for one prompt.

    Attributes:
        settings: The method.
        loop: The module that is called for each token.
        recorder: Sees the last layer's attention.
        processors: Logits processors.
        criteria: Stopping criteria.
        config: The call's generation config.
        prompt_ids: (beams, length).
        prompt_kwargs: Arguments of the model after the prefill, before any token.
        logits: Of the next token, (beams, vocabulary).
        image: True at the prompt's image tokens, (length,).
    """

    settings: Opera
    loop: Any
    recorder: AttentionRecorder
    processors: Any
    criteria: Any
    config: Any
    prompt_ids: Tensor
    prompt_kwargs: dict[str, Any]
    logits: Tensor
    image: Tensor

    def __post_init__(self) -> None:
        self.beams = Beams.first(self.prompt_ids)
        self.prompt_length = self.prompt_ids.shape[1]
        self.model_kwargs = self._after_prompt(1)
        # Sums over columns of attention among response tokens, and which columns have won, step by step.
        self.sums = torch.zeros_like(self.logits[:, :0])
        self.won = self.prompt_ids[:, :0]
        self.memories: list[Memory] = []
        self.returns: dict[int, int] = {}
        self.rejected: dict[int, Tensor] = {}

    @property
    def tokens(self) -> int:
        """Number of response tokens so far."""
        return len(self.memories)

    def run(self) -> Beams:
        """Search until the beams are done."""
        while True:
            scores = self._penalised()
            place = self._place_to_return()
            if place is not None:
                scores = self._go_back(place)
            parents = self._choose(scores)
            if self.beams.done:
                return self.beams
            self._forward(parents)

    # The penalty

    def _penalised(self) -> Tensor:
        """Logits with the candidates' penalty, everything else rejected, (beams, vocabulary)."""
        count = min(self.settings.candidates, self.logits.shape[1])
        values, candidates = self.logits.topk(count, dim=-1)
        rows = self._candidate_attention(candidates)
        sums = add_row(self.sums[:, None].expand(-1, count, -1), rows[..., self.prompt_length :], self.settings.scale)
        phi, columns = column_score(sums)
        self.won = torch.cat([self.won, columns.mode(dim=-1).values[:, None]], dim=1)
        if self.tokens + 1 <= _FIRST_TOKENS:
            phi = -rows[..., : self.prompt_length][..., self.image].sum(dim=-1)
        penalised = torch.full_like(self.logits, _REJECTED)
        return penalised.scatter(-1, candidates, values - self.settings.penalty * phi)

    def _candidate_attention(self, candidates: Tensor) -> Tensor:
        """Attention weights of each candidate if it were the next token, (beams, candidates, positions)."""
        beams, count = candidates.shape
        rows = torch.arange(beams, device=candidates.device).repeat_interleave(count)
        ids = torch.cat([self.beams.ids[rows], candidates.reshape(-1, 1)], dim=1)
        self._call(ids, 1, take_rows(self.model_kwargs, rows, beams))
        return self.recorder.take()[:, 0].view(beams, count, -1)

    # Forwards

    def _call(self, ids: Tensor, length: int, kwargs: dict[str, Any]) -> Any:
        inputs = self.loop.prepare_inputs_for_generation(ids, next_sequence_length=length, **kwargs)
        return self.loop(**inputs, return_dict=True)

    def _after(self, kwargs: dict[str, Any], new: int) -> dict[str, Any]:
        """Arguments with masks and positions for so many more tokens."""
        longer: dict[str, Any] = self.loop._update_model_kwargs_for_generation({}, dict(kwargs), num_new_tokens=new)
        return longer

    def _after_prompt(self, new: int) -> dict[str, Any]:
        """Arguments for the first tokens, with a copy of the prompt's cache."""
        rows = torch.arange(len(self.prompt_ids), device=self.prompt_ids.device)
        return self._after(take_rows(self.prompt_kwargs, rows, len(rows)), new)

    def _forward(self, parents: Tensor) -> None:
        """Forward the tokens that were just chosen."""
        self.model_kwargs["past_key_values"].reorder_cache(parents)
        self.won = self.won[parents]
        output = self._call(self.beams.ids, 1, self.model_kwargs)
        row = self.recorder.take()[:, 0, self.prompt_length :]
        self.sums = add_row(self.sums[parents], row, self.settings.scale)
        self.logits = output.logits[:, -1].float()
        self.model_kwargs = self._after(self.model_kwargs, 1)

    def _choose(self, scores: Tensor) -> Tensor:
        """One step of beam search with given logits; the beam that each running beam goes on from."""
        before = self.beams
        log_probs = self.processors(before.ids, log_softmax(scores, dim=-1))
        self.beams = before.step(log_probs, self.config, self.criteria)
        parents = self.beams.parents[:, -1]
        self.memories.append(Memory(before, self.won, torch.stack([parents, self.beams.ids[:, -1]], dim=1)))
        return parents

    # Going back

    def _place_to_return(self) -> int | None:
        """Index of the response token that is to be chosen anew, if any."""
        threshold = self.settings.threshold
        if threshold is None:
            return None
        column = int(self.won[:, -1].mode().values)
        if column < _FIRST_TOKENS or not bool(((self.won == column).sum(dim=1) > threshold).all()):
            return None
        for place in (column + 1, column):
            if self.returns.get(place, 0) < self.settings.candidates:
                # The token at that place must have been chosen already.
                return place if place < self.tokens else None
        return None

    def _go_back(self, place: int) -> Tensor:
        """Restore the search as it was before token `place`, without the tokens that it chose there before."""
        self.returns[place] = self.returns.get(place, 0) + 1
        memory = self.memories[place]
        self.memories = self.memories[:place]
        self.beams, self.won = memory.beams, memory.won
        self.rejected = {index: pairs for index, pairs in self.rejected.items() if index <= place}
        earlier = self.rejected.get(place)
        self.rejected[place] = memory.chosen if earlier is None else torch.cat([earlier, memory.chosen])
        self._read_again()
        scores = self.logits.clone()
        beam, token = self.rejected[place].unbind(dim=1)
        scores[beam, token] = _REJECTED
        return scores

    def _read_again(self) -> None:
        """Rebuild the cache of the restored beams: the prompt's, and their response tokens in one forward."""
        kwargs = self._after_prompt(self.tokens)
        output = self._call(self.beams.ids, self.tokens, kwargs)
        block = self.recorder.take()[:, :, self.prompt_length :]
        self.sums = column_sums(block, self.settings.scale)
        self.logits = output.logits[:, -1].float()
        self.model_kwargs = self._after(kwargs, 1)
