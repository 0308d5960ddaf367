"""`rudder generate`: the answer of a model to a picture, without and with RUDDER."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import choose_device, copyable, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from .ask import Answer
    from .inputs import Subject

EXAMPLES = copyable(
    "rudder generate",
    "rudder generate --example 3 --trace",
    "rudder generate --alpha-max 8 --no-compare --stream",
    "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
    "rudder generate a.jpg b.jpg --model FOLDER --layer 20 --alpha-max 5 --json",
)
BATCH = 8
PROMPT = "Please help me describe the image in detail"


def generate(
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE", help="Pictures; none shows an example picture.")
    ] = None,
    model: options.ModelOption = None,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = PROMPT,
    layer: options.LayerOption = None,
    mode: options.ModeOption = None,
    alpha_max: options.AlphaMaxOption = None,
    k: options.SensitivityOption = None,
    c: Annotated[float | None, typer.Option(help="Concentration of the gate.")] = None,
    g_min: Annotated[float | None, typer.Option(help="Least gate.")] = None,
    g_max: Annotated[float | None, typer.Option(help="Largest gate.")] = None,
    norm_cap: Annotated[float | None, typer.Option(help="Longest push (tau).")] = None,
    steer_first_token: Annotated[
        bool | None, typer.Option("--steer-first-token/--no-steer-first-token", help="Steer the first token too.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    example: Annotated[int, typer.Option(min=1, help="Which of the example pictures, if no picture is given.")] = 4,
    annotations: Annotated[
        Path | None, typer.Option(help="COCO instances file: marks objects that are not in the picture.")
    ] = None,
    batch_size: options.BatchSizeOption = BATCH,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Show the unsteered answer too.")] = True,
    trace: Annotated[bool, typer.Option("--trace", help="Show similarity, gate and push of every token.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print words as they come, picture by picture.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = options.DtypeChoice.AUTO,
) -> None:
    """Answer a question about pictures, without and with RUDDER, and mark objects that are not there.

    Settings that are not given come from the model's preset. Models without one need --layer and --alpha-max.
    """
    settings = options.given_settings(
        layer=layer,
        mode=mode,
        alpha_max=alpha_max,
        k=k,
        c=c,
        g_min=g_min,
        g_max=g_max,
        norm_cap=norm_cap,
        steer_first_token=steer_first_token,
    )
    with refusing_bad_input():
        if stream and as_json:
            raise ValueError("--stream prints words as they come and --json one document: choose one of them.")
        from . import inputs as subjects

        shown = subjects.subjects(images or [], example, annotations)
    with reporting_failure():
        with refusing_bad_input():
            from ..runtime.models import load_steered
            from . import ask as answers

            steered, processor = load_steered(model, settings, choose_device(device), dtype.value)
        show = _Shown(model, prompt, trace, stream, as_json)
        results: list[Answer] = []
        for part in subjects.batches(shown, 1 if stream else batch_size, quiet=stream or as_json):
            pictures = [subject.picture for subject in part]
            told = show.streamer(part[0], processor) if stream else None
            fresh = answers.ask(steered, processor, pictures, prompt, max_new_tokens, compare, told)
            for subject, answer in zip(part, fresh, strict=True):
                show.answer(subject, answer)
            results += fresh
        show.finish(shown, results)


class _Shown:
    """What the user sees, as it comes."""

    def __init__(self, model: str | None, prompt: str, trace: bool, stream: bool, as_json: bool) -> None:
        self.model, self.prompt, self.trace = model, prompt, trace
        self.stream, self.as_json, self.started = stream, as_json, False

    def note(self) -> str | None:
        """What users have to know about the embedded model."""
        from ..scenes.embedded import NOTE

        return NOTE if self.model is None else None

    def head(self, settings: dict[str, Any] | None) -> None:
        """Printed once, before the first answer."""
        if self.started:
            return
        self.started = True
        if self.note():
            typer.echo(f"{self.note()}\n")
        typer.echo(f"prompt:  {self.prompt}")
        if settings is not None:
            used = f"mode {settings['mode']}, layer {settings['layer']}, alpha_max {settings['alpha_max']:g}"
            typer.echo(f"rudder:  {used}, k {settings['k']:g}")

    def streamer(self, subject: Subject, processor: Any) -> Any:
        """Makes streamers that print the words of an answer behind its name."""
        from transformers import TextStreamer

        self.head(None)
        typer.echo(f"\nimage:   {subject.title}")

        def make(name: str) -> TextStreamer:
            typer.echo(f"{name}: ", nl=False)
            return TextStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)

        return make

    def answer(self, subject: Subject, answer: Answer) -> None:
        """Print one answer, unless it goes into the JSON."""
        if self.as_json:
            return
        from rich.console import Console

        from .ask import trace_table

        if not self.stream:
            self.head(answer.settings)
            typer.echo(f"\nimage:   {subject.title}")
            if answer.vanilla is not None:
                typer.echo(f"vanilla: {subject.marked(answer.vanilla)}")
            typer.echo(f"steered: {subject.marked(answer.steered)}")
        if subject.present is not None:
            told = [("vanilla", answer.vanilla), ("steered", answer.steered)]
            wrong = [f"{name} {subject.absent_words(text)}" for name, text in told if text is not None]
            typer.echo(f"not in the picture: {'; '.join(wrong)}")
        typer.echo(answer.summary())
        if self.trace:
            Console().print(trace_table(answer))

    def finish(self, shown: list[Subject], results: list[Answer]) -> None:
        """Print the JSON document."""
        if not self.as_json:
            return
        record = {
            "model": self.model or "embedded:llava",
            "note": self.note(),
            "prompt": self.prompt,
            "settings": results[0].settings,
            "answers": [subject.record(answer) for subject, answer in zip(shown, results, strict=True)],
        }
        typer.echo(json.dumps(record, indent=2))
