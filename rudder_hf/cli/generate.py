"""`rudder generate`: the answer of a model to an image, without and with RUDDER."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import choose_device, copyable, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from .ask import Answer
    from .inputs import NamedImage

EXAMPLES = copyable(
    "rudder generate",
    "rudder generate --example 3 --trace",
    "rudder generate --alpha-max 8 --no-compare --stream",
    "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
    "rudder generate a.jpg b.jpg --model FOLDER --layer 20 --alpha-max 5 --json",
)
PROMPT = "Please help me describe the image in detail"


def generate(
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE", help="None shows an example.")] = None,
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
    example: Annotated[int, typer.Option(min=1, help="Which of the examples, if no image is given.")] = 4,
    annotations: Annotated[
        Path | None, typer.Option(help="COCO instances file: marks objects that are not in the image.")
    ] = None,
    batch_size: options.BatchSizeOption = 8,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Show the unsteered answer too.")] = True,
    trace: Annotated[bool, typer.Option("--trace", help="Show similarity, gate and push of every token.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print words as they come, image by image.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = options.DtypeChoice.AUTO,
) -> None:
    """Answer a question about images, without and with RUDDER, and mark objects that are not there.

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
        from .inputs import find_images

        shown = find_images(images or [], example, annotations)
    with reporting_failure():
        with refusing_bad_input():
            from ..runtime.models import load_steered
            from ..runtime.progress import ProgressBar
            from .ask import ask

            steered, processor = load_steered(model, settings, choose_device(device), dtype.value)
        size = 1 if stream else batch_size
        printer = _Printer(model, prompt, trace, stream)
        answers: list[Answer] = []
        with ProgressBar(shown=not (stream or as_json)) as bar:
            for start in range(0, len(shown), size):
                part = shown[start : start + size]
                bar("images", start, len(shown))
                streamer = printer.streamer(part[0], processor) if stream else None
                found = ask(steered, processor, [one.image for one in part], prompt, max_new_tokens, compare, streamer)
                answers += found
                if not as_json:
                    for image, answer in zip(part, found, strict=True):
                        printer.answer(image, answer)
        if as_json:
            typer.echo(json.dumps(_document(model, prompt, shown, answers), indent=2))


class _Printer:
    """Prints answers as they come."""

    def __init__(self, model: str | None, prompt: str, trace: bool, stream: bool) -> None:
        self.note, self.prompt, self.trace, self.stream = _note(model), prompt, trace, stream
        self.started = False

    def head(self, settings: dict[str, Any] | None) -> None:
        """Print the note, the prompt and the settings, once, before the first answer."""
        if self.started:
            return
        self.started = True
        if self.note:
            typer.echo(f"{self.note}\n")
        typer.echo(f"prompt:  {self.prompt}")
        if settings is not None:
            used = f"mode {settings['mode']}, layer {settings['layer']}, alpha_max {settings['alpha_max']:g}"
            typer.echo(f"rudder:  {used}, k {settings['k']:g}")

    def streamer(self, image: NamedImage, processor: Any) -> Callable[[str], Any]:
        """A function that makes streamers, which print the words of an answer behind its name."""
        from transformers import TextStreamer

        self.head(None)
        typer.echo(f"\nimage:   {image.title}")

        def make(name: str) -> TextStreamer:
            typer.echo(f"{name}: ", nl=False)
            return TextStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)

        return make

    def answer(self, image: NamedImage, answer: Answer) -> None:
        """Print one answer, or what is to be said after its words were streamed."""
        from rich.console import Console

        from ..metrics.highlight import marked

        if not self.stream:
            self.head(answer.settings)
            typer.echo(f"\nimage:   {image.title}")
            for name, text in answer.texts.items():
                typer.echo(f"{name}: {marked(text, image.present)}")
        if image.present is not None:
            wrong = [f"{name} {', '.join(image.absent(text)) or 'nothing'}" for name, text in answer.texts.items()]
            typer.echo(f"not in the image: {'; '.join(wrong)}")
        typer.echo(answer.summary())
        if self.trace:
            Console().print(answer.trace_table())


def _note(model: str | None) -> str | None:
    """What users have to know about the embedded model."""
    from ..scenes.embedded import NOTE

    return NOTE if model is None else None


def _document(model: str | None, prompt: str, images: list[NamedImage], answers: list[Answer]) -> dict[str, Any]:
    """The JSON document; the settings are the same for all images."""
    records = []
    for image, answer in zip(images, answers, strict=True):
        record = {"image": image.name, **asdict(answer)}
        record.pop("settings")
        if image.present is not None:
            record["present"] = sorted(image.present)
            record["absent"] = {name: image.absent(text) for name, text in answer.texts.items()}
        records.append(record)
    return {
        "model": model or "embedded:llava",
        "note": _note(model),
        "prompt": prompt,
        "settings": answers[0].settings,
        "answers": records,
    }
