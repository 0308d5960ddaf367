"""`RudderTrace`: what RUDDER saw and did during one `generate`, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .call import Call


@dataclass(repr=False)
class RudderTrace:
    """Per-token record of a steered generation. Columns belong to generated tokens, in order.

    Padding after a row's end is NaN.
    """

    card: Tensor  # v_CARD of each row, (rows, hidden size)
    similarity: Tensor  # s_t, the cosine of CARD and the hidden state that emits token t, (rows, new tokens)
    # Share of alpha_max that was applied, (rows, new tokens): g_t, less where the norm cap bound it; 1 in mode "add"
    # without a cap; 0 where nothing was added.
    gate: Tensor
    push: Tensor  # ||v_t^steer|| / ||h_t||, the push relative to the hidden state, (rows, new tokens)
    settings: dict[str, Any] = field(default_factory=dict)  # those in force
    # One entry for each image whose cached values were contrasted: its `prompt`, its `positions` in the cache, the
    # `layers`, and for each of these how far the values `moved`, relative to their norm.
    contrast: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        rows, tokens = self.similarity.shape
        parts = [f"{rows} {'row' if rows == 1 else 'rows'}", f"{tokens} {'token' if tokens == 1 else 'tokens'}"]
        parts.append(f"{int((self.gate > 0).sum())} of {int((~self.similarity.isnan()).sum())} steered")
        for name in ("similarity", "gate", "push"):
            values = getattr(self, name)[self.gate > 0]
            if len(values):
                parts.append(f"{name} {values.mean():.3f} ({values.min():.3f} to {values.max():.3f})")
        return f"<RudderTrace: {', '.join(parts)}>"


class TraceRecorder:
    """Gathers what each forward observed and lays it out by token.

    Positions can be seen more than once (rejected candidates of assisted decoding, every step without a cache): the
    last sight of a position is the one that emitted its token, and wins.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, tuple[Tensor, Tensor, Tensor]]] = []

    def add(self, first_token: int, observed: tuple[Tensor, Tensor, Tensor]) -> None:
        """Record (similarity, gate, push), each (rows, n), of the positions that emit tokens from `first_token` on."""
        if first_token < 0:
            observed = tuple(values[:, -first_token:] for values in observed)  # type: ignore[assignment]
            first_token = 0
        similarity, gate, push = (values.detach().float().clone() for values in observed)
        self._steps.append((first_token, (similarity, gate, push)))

    def table(self, new_tokens: int, card: Tensor) -> list[Tensor]:
        """Return similarity, gate and push as (rows of `card`, new tokens); NaN where nothing was observed."""
        columns = max([new_tokens, *(first + step[0].shape[1] for first, step in self._steps)])
        tables = [card.new_full((len(card), columns), torch.nan) for _ in range(3)]
        for first, step in self._steps:
            for table, values in zip(tables, step, strict=True):
                table[:, first : first + values.shape[1]] = values
        return [table[:, :new_tokens] for table in tables]

    def lay_out(self, call: Call, output: Any, card: Tensor, settings: dict[str, Any]) -> RudderTrace:
        """Make the trace of the sequences that a call returned, from v_CARD of each row of its token loop."""
        new_ids = output.sequences[:, call.prompt_length :]
        beams = getattr(output, "beam_indices", None)
        if beams is None:
            eos_ids = torch.as_tensor(call.option("eos_token_id", []), dtype=torch.long).flatten().tolist()
            pad_id = call.option("pad_token_id", eos_ids[0] if eos_ids else None)
            ended = after_end(new_ids, eos_ids, None if pad_id is None else int(pad_id))
            # Observed on the layer's device, which need not be the one that the answer is on.
            tables = self.table(new_ids.shape[1], card)
            tables = [table.masked_fill(ended.to(table.device), torch.nan) for table in tables]
        else:
            tables = [follow_beams(table, beams) for table in self.table(beams.shape[1], card)]
            card = card[beams[:, 0].to(card.device)]
        similarity, gate, push = tables
        return RudderTrace(card, similarity, gate, push, settings)


def follow_beams(table: Tensor, beam_indices: Tensor) -> Tensor:
    """Pick, token by token, the beam that each returned sequence came from; -1 marks tokens after the end."""
    steps = torch.arange(beam_indices.shape[1], device=table.device)
    beam_indices = beam_indices.to(table.device)
    picked = table[beam_indices.clamp_min(0), steps]
    return torch.where(beam_indices >= 0, picked, torch.nan)


def after_end(new_ids: Tensor, eos_ids: list[int], pad_id: int | None) -> Tensor:
    """Mark the padding of rows that ended before the others, (rows, new tokens).

    A row ends with its first end-of-sequence token, or where a stopping criterion ended it and padding follows.
    """
    if not eos_ids:
        # Without such a token `generate` does not pad.
        return torch.zeros_like(new_ids, dtype=torch.bool)
    is_eos = torch.isin(new_ids, torch.tensor(eos_ids, device=new_ids.device)).long()
    after = is_eos.cumsum(-1) - is_eos > 0
    if pad_id is not None:
        trailing = (new_ids == pad_id).long().flip(-1).cumprod(-1).flip(-1).bool()
        after = after | (trailing & ~is_eos.bool())
    return after
