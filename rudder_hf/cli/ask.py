"""Asking a model about images: as it is, and steered."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import typer
from PIL.Image import Image
from transformers import TextStreamer

from ..hub.modeling import RudderForConditionalGeneration
from ..runtime.answers import encode
from ..runtime.report import Table


@dataclass(frozen=True)
class Answer:
    """What a model says about one image."""

    vanilla: str | None  # without RUDDER; None if it was not asked for
    steered: str  # with RUDDER
    tokens: list[str]  # of the steered answer, as the three that follow
    similarity: list[float]  # s_t
    gate: list[float]  # g_t, 0 where nothing was added
    push: list[float]  # its length relative to the hidden state
    settings: dict[str, Any]  # RUDDER's, on this image

    @property
    def texts(self) -> dict[str, str]:
        """The texts that were asked for, by their names."""
        found = {"vanilla": self.vanilla, "steered": self.steered}
        return {name: text for name, text in found.items() if text is not None}

    def summary(self) -> str:
        """One line about how similarity and gate went."""
        gates = [gate for gate in self.gate if gate > 0]
        if not gates:
            return f"steered tokens: 0 of {len(self.tokens)}"
        return (
            f"steered tokens: {len(gates)} of {len(self.tokens)}; gate {_range(gates)}; "
            f"similarity {_range(self.similarity)}; push {100 * statistics.mean(self.push):.1f} % of the hidden state"
        )

    def trace_table(self) -> Table:
        """One row per token of the steered answer."""
        columns = zip(self.tokens, self.similarity, self.gate, self.push, strict=True)
        rows = [[token, f"{s:+.3f}", f"{g:.3f}", f"{100 * push:.1f} %"] for token, s, g, push in columns]
        headings = ["token", "similarity s", "gate g", "push / hidden state"]
        return Table(headings, rows, "what RUDDER saw and did, token by token")


def _range(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} on average ({min(values):.3f} to {max(values):.3f})"


def ask(
    model: RudderForConditionalGeneration,
    processor: Any,
    images: list[Image],
    prompt: str,
    max_new_tokens: int,
    compare: bool = True,
    stream: bool = False,
) -> list[Answer]:
    """Ask one question about each image, all in one batch, greedily.

    With `compare`, the unsteered model is asked too. With `stream`, which takes one image, the words are printed as
    they come, behind "vanilla: " or "steered: ".
    """
    inputs = encode(model, processor, images, [prompt] * len(images))

    def generate(name: str, **options: Any) -> Any:
        if stream:
            typer.echo(f"{name}: ", nl=False)
            options["streamer"] = TextStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
        return model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, **options)

    def decode(ids: Any) -> str:
        return str(processor.tokenizer.decode(ids, skip_special_tokens=True)).strip()

    vanilla = generate("vanilla", rudder=False) if compare else None
    steered = generate("steered", return_dict_in_generate=True, output_rudder=True)
    trace = steered.rudder
    # All rows have the same settings here.
    settings = {name: value[0] if isinstance(value, list) else value for name, value in trace.settings.items()}
    # Some models return the prompt with the answer and some do not: the trace knows how long the answer is.
    start = steered.sequences.shape[1] - trace.similarity.shape[1]
    answers = []
    for row in range(len(images)):
        length = int((~trace.similarity[row].isnan()).sum())
        ids = steered.sequences[row, start : start + length]
        answers.append(
            Answer(
                vanilla=None if vanilla is None else decode(vanilla[row, start:]),
                steered=decode(ids),
                tokens=[processor.tokenizer.decode([token]) for token in ids.tolist()],
                similarity=trace.similarity[row, :length].tolist(),
                gate=trace.gate[row, :length].tolist(),
                push=trace.push[row, :length].tolist(),
                settings=settings,
            )
        )
    return answers
