"""Loading a model and asking it about pictures: as it is, and steered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from PIL.Image import Image
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..hub.modeling import RudderForConditionalGeneration
from ..hub.processing import encode
from ..runtime.prompts import to_model


@dataclass(frozen=True)
class Answer:
    """What a model says about one picture.

    Attributes:
        vanilla: Without RUDDER; None if it was not asked for.
        steered: With RUDDER.
        tokens: The steered answer, token by token.
        similarity: s_t of each token.
        gate: g_t of each token, 0 where nothing was added.
        push: Length of the push relative to the hidden state, for each token.
        settings: RUDDER's settings on this picture.
    """

    vanilla: str | None
    steered: str
    tokens: list[str]
    similarity: list[float]
    gate: list[float]
    push: list[float]
    settings: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """The answer as JSON values; the settings are told once for all pictures."""
        record = asdict(self)
        record.pop("settings")
        return record

    def summary(self) -> str:
        """One line about how similarity and gate went."""
        gates = [gate for gate in self.gate if gate > 0]
        if not gates:
            return f"steered tokens: 0 of {len(self.tokens)}"
        return (
            f"steered tokens: {len(gates)} of {len(self.tokens)}; gate {_span(gates)}; "
            f"similarity {_span(self.similarity)}; push {100 * statistics.mean(self.push):.1f} % of the hidden state"
        )


def _span(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} on average ({min(values):.3f} to {max(values):.3f})"


def ask(
    model: RudderForConditionalGeneration,
    processor: Any,
    pictures: list[Image],
    prompt: str,
    max_new_tokens: int,
    compare: bool = True,
    streamer: Callable[[str], Any] | None = None,
) -> list[Answer]:
    """Ask one question about each picture, all in one batch, greedily.

    With `compare`, the unsteered model is asked too. `streamer` makes the streamer of an answer from its name,
    "vanilla" or "steered"; it takes one picture.
    """
    inputs = to_model(encode(processor, pictures, [prompt] * len(pictures)), model)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    vanilla: Tensor | None = (
        model.generate(**inputs, **options, rudder=False, **_streamed(streamer, "vanilla")) if compare else None
    )
    steered = model.generate(
        **inputs, **options, return_dict_in_generate=True, output_rudder=True, **_streamed(streamer, "steered")
    )
    trace = steered.rudder
    # Some models return the prompt with the answer and some do not: the trace knows how long the answer is.
    start = steered.sequences.shape[1] - trace.similarity.shape[1]
    answers = []
    for row in range(len(pictures)):
        columns = [table[row].tolist() for table in (trace.similarity, trace.gate, trace.push)]
        length = sum(not math.isnan(value) for value in columns[0])
        ids = steered.sequences[row, start : start + length]
        similarity, gate, push = (column[:length] for column in columns)
        answers.append(
            Answer(
                vanilla=None if vanilla is None else _decode(processor, vanilla[row, start:]),
                steered=_decode(processor, ids),
                tokens=[processor.tokenizer.decode([token]) for token in ids.tolist()],
                similarity=similarity,
                gate=gate,
                push=push,
                settings=_shared_settings(trace.settings),
            )
        )
    return answers


def _streamed(streamer: Callable[[str], Any] | None, name: str) -> dict[str, Any]:
    return {} if streamer is None else {"streamer": streamer(name)}


def _decode(processor: Any, ids: Tensor) -> str:
    text: str = processor.tokenizer.decode(ids, skip_special_tokens=True)
    return text.strip()


def _shared_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A trace's settings with one value instead of a list with one per row: all rows have the same here."""
    return {name: value[0] if isinstance(value, list) else value for name, value in settings.items()}


def trace_table(answer: Answer) -> Table:
    """One row per token of the steered answer."""
    table = Table("token", title="what RUDDER saw and did, token by token")
    for heading in ("similarity s", "gate g", "push / hidden state"):
        table.add_column(heading, justify="right")
    for token, s, g, push in zip(answer.tokens, answer.similarity, answer.gate, answer.push, strict=True):
        table.add_row(Text(token), f"{s:+.3f}", f"{g:.3f}", f"{100 * push:.1f} %")
    return table
