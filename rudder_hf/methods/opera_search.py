"""OPERA's search for one prompt: transformers' own beam steps, with a memory to go back to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from .opera_attention import AttentionRecorder, add_row, column_score, column_sums
from .opera_beams import Beams, beam_step, cache_rows, first_beams, repeat_rows

if TYPE_CHECKING:
    from .opera import Opera

# What a token gets that is no candidate, or that was chosen before the search went back.
_REJECTED = -999.0
# Response tokens whose candidates are judged by their attention to the image, and before which it never goes back.
_FIRST_TOKENS = 10


@dataclass(frozen=True)
class Memory:
    """What the search was before it chose a token: the beams, which columns had won, and the choice."""

    beams: Beams
    won: Tensor
    chosen: Tensor


class OperaSearch:
    """The search for one prompt.

    Args:
        settings: The method.
        loop: The module that is called for each token.
        recorder: Sees the last layer's attention.
        prompt_ids: (beams, length).
        model_kwargs: Arguments of the model after the prefill, before any token.
        logits: Of the first token, (beams, vocabulary).
        image: True at the prompt's image tokens, (length,).
        processors: Logits processors.
        criteria: Stopping criteria.
        config: The call's generation config.
    """

    def __init__(
        self,
        settings: Opera,
        loop: Any,
        recorder: AttentionRecorder,
        *,
        prompt_ids: Tensor,
        model_kwargs: dict[str, Any],
        logits: Tensor,
        image: Tensor,
        processors: Any,
        criteria: Any,
        config: Any,
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.recorder = recorder
        self.prompt_kwargs = model_kwargs
        self.image = image
        self.processors = processors
        self.criteria = criteria
        self.config = config
        self.width, self.prompt_length = prompt_ids.shape
        self.beams = first_beams(prompt_ids, config)
        self.logits = logits
        # After the prompt: the arguments for the next token, and the sums over columns of attention among tokens.
        self.model_kwargs = self._after(
            {**model_kwargs, "past_key_values": cache_rows(model_kwargs["past_key_values"])}, 1
        )
        self.sums = torch.zeros(self.width, 0, device=prompt_ids.device)
        self.won = torch.zeros(self.width, 0, dtype=torch.long, device=prompt_ids.device)
        self.memories: list[Memory] = []
        self.returns: dict[int, int] = {}
        self.rejected: dict[int, Tensor] = {}

    @property
    def tokens(self) -> int:
        """Number of response tokens so far."""
        return len(self.memories)

    @property
    def ids(self) -> Tensor:
        """Prompt and response of each beam, (beams, length)."""
        return self.beams.running[0, :, : self.beams.length]

    def run(self) -> Beams:
        """Search until the beams are done."""
        while True:
            scores = self._penalised()
            place = self._place_to_return()
            if place is not None:
                scores = self._go_back(place)
            parents = self._choose(scores)
            if not self.loop._beam_search_has_unfinished_sequences(
                self.beams.improvable, self.beams.finished, self.beams.stopped, self.config.early_stopping
            ):
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
        ids = torch.cat([self.ids.repeat_interleave(count, dim=0), candidates.reshape(-1, 1)], dim=1)
        kwargs = repeat_rows(self.model_kwargs, beams, count)
        self._call(ids, 1, kwargs)
        return self.recorder.take()[:, 0].view(beams, count, -1)

    # Forwards

    def _call(self, ids: Tensor, length: int, kwargs: dict[str, Any]) -> Any:
        inputs = self.loop.prepare_inputs_for_generation(ids, next_sequence_length=length, **kwargs)
        self.recorder.watching = True
        try:
            return self.loop(**inputs, return_dict=True)
        finally:
            self.recorder.watching = False

    def _after(self, kwargs: dict[str, Any], new: int) -> dict[str, Any]:
        """Arguments with masks and positions for so many more tokens."""
        longer: dict[str, Any] = self.loop._update_model_kwargs_for_generation({}, dict(kwargs), num_new_tokens=new)
        return longer

    def _forward(self, parents: Tensor) -> None:
        """Forward the tokens that were just chosen."""
        self.model_kwargs["past_key_values"].reorder_cache(parents)
        self.won = self.won[parents]
        output = self._call(self.ids, 1, self.model_kwargs)
        row = self.recorder.take()[:, 0, self.prompt_length :]
        self.sums = add_row(self.sums[parents], row, self.settings.scale)
        self.logits = output.logits[:, -1].float()
        self.model_kwargs = self._after(self.model_kwargs, 1)

    # Choosing

    def _choose(self, scores: Tensor) -> Tensor:
        """One step of beam search with given logits; the beam that each running beam goes on from."""
        log_probs = self.processors(self.ids, log_softmax(scores, dim=-1))
        before, self.beams = self.beams, beam_step(self.loop, self.config, self.criteria, self.beams, log_probs)
        parents = self.beams.running_indices[0, :, self.tokens].long()
        chosen = torch.stack([parents, self.beams.running[0, :, before.length]], dim=1)
        self.memories.append(Memory(before, self.won, chosen))
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
        kwargs = {**self.prompt_kwargs, "past_key_values": cache_rows(self.prompt_kwargs["past_key_values"])}
        kwargs = self._after(kwargs, self.tokens)
        output = self._call(self.ids, self.tokens, kwargs)
        block = self.recorder.take()[:, :, self.prompt_length :]
        self.sums = column_sums(block, self.settings.scale)
        self.logits = output.logits[:, -1].float()
        self.model_kwargs = self._after(kwargs, 1)
