"""`rudder generate`: the answer of a model to an image, without and with RUDDER."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import common

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..analyze.examples import AnswerPair

EXAMPLES = {
    "generate": (
        "rudder generate",
        "rudder generate --contrast 0.6",
        "rudder generate --example 3 --trace",
        "rudder generate --alpha-max 8 --set span=text",
        "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
        "rudder generate photos --model FOLDER --layer 20 --alpha-max 5 --json",
    )
}
DESCRIBE_PROMPT = "Please help me describe the image in detail"
EXAMPLES_SHOWN = 3  # of the examples, by a model that does not know them
COUNTED = 48  # examples that a model that knows them answers in one batch
TIMEOUT = 30.0  # seconds for an image behind a URL


def generate_command(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Files, folders or URLs; none shows examples.")
    ] = None,
    model: common.ModelOption = None,
    prompt: Annotated[str, typer.Option(help="Question about each image.")] = DESCRIBE_PROMPT,
    layer: common.LayerOption = None,
    mode: common.ModeOption = None,
    alpha_max: common.AlphaMaxOption = None,
    k: common.SensitivityOption = None,
    contrast: common.ContrastOption = None,
    settings: common.SettingsOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N images.")] = None,
    example: Annotated[int | None, typer.Option(min=1, help="Show only the example with this number.")] = None,
    batch_size: common.BatchSizeOption = 8,
    trace: Annotated[bool, typer.Option("--trace", help="Show similarity, gate and push of every token.")] = False,
    as_json: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
) -> None:
    """Answer a question about images, without and with RUDDER, and mark objects that are not there.

    Settings that are not given come from the model's preset. Models without one need --layer and --alpha-max.
    """
    given = dict(locals())
    with common.refusing_bad_input():
        if images and example is not None:
            raise ValueError("--example is for the examples, which are shown where no image is given.")
        found = _read_images(images, limit) if images else _examples(example)
        wanted = common.given_settings(given)
    with common.reporting_failure():
        with common.refusing_bad_input():
            from ..analyze.examples import ask
            from ..runtime.models import load_steered
            from ..runtime.report import ProgressBar
            from ..scenes.embedded import NOTE, embedded_name

            steered, processor = load_steered(model, wanted, common.choose_device(device), dtype)
        # A model that knows the scenes describes all of them, which is cheap; a rule says which ones are shown.
        counted = not (images or example) and embedded_name(model) and prompt == DESCRIBE_PROMPT
        if not images:
            found = found[: limit or (COUNTED if counted else EXAMPLES_SHOWN)]
        beyond = "  (the contrast is not in the paper)" if steered.config.contrast else ""
        if not as_json:
            if model is None:
                typer.echo(f"{NOTE}\n")
            typer.echo(f"prompt:  {prompt}\nrudder:  {steered.config.expression()}{beyond}")
        answers: list[AnswerPair] = []
        size = COUNTED if counted else batch_size
        while part := found[len(answers) : len(answers) + size]:
            with ProgressBar(shown=not as_json) as bar:
                bar("images", len(answers), len(found))
                new = ask(steered, processor, [image.read() for image in part], prompt, max_new_tokens)
            answers += new
            for image, answer in zip(part, new, strict=True) if not (as_json or counted) else ():
                _print_answer(image, answer, trace)
        if as_json:
            document = {
                "model": model or "embedded:llava",
                "note": NOTE if model is None else None,
                "prompt": prompt,
                "rudder": steered.config.expression(),
                "settings": answers[0].settings,
                "answers": [_answer_record(image, answer) for image, answer in zip(found, answers, strict=True)],
            }
            typer.echo(json.dumps(document, indent=2))
        elif counted:
            _print_counted(found, answers, trace)
            if not wanted and (held_out := _held_out(steered.config.calibration or {})):
                typer.echo(held_out)
        if warning := _repetition(answers):
            typer.echo(warning, err=True)
        if not as_json:
            known = "photo.jpg --model ID" if model is None else f"--model {model} --trace"
            common.next_steps(
                f"rudder generate {known}", f"rudder calibrate --model {model or 'ID'} --out FOLDER --dry-run"
            )


def _print_counted(found: list[_NamedImage], answers: list[AnswerPair], trace: bool) -> None:
    """Print the scenes that the rules choose, and what all scenes show."""
    from ..analyze.examples import Examples

    present = [image.present or () for image in found]
    examples = Examples(present, [answer.vanilla for answer in answers], [answer.steered for answer in answers])
    for place, rule in (examples.chosen() or {0: "First scene: no rule holds for any of them"}).items():
        _print_answer(found[place], answers[place], trace, rule)
    typer.echo(f"\n{examples.summary()}")


def _held_out(record: dict[str, Any]) -> str:
    """What the held-out images showed of calibrated settings; empty if these are not."""
    from ..runtime.report import change_in_points

    labels = {"chair_s": "CHAIR_S", "chair_i": "CHAIR_I", "recall": "recall", "f1": "F1"}
    changes = record.get("held_out") or {}
    if record.get("refusal") or not changes.keys() >= labels.keys():
        return ""
    shown = ", ".join(f"{label} {change_in_points(changes[name])}" for name, label in labels.items())
    return f"Change on {len(record['held_out_images'])} held-out scenes, in points with 95 % intervals: {shown}."


def _repetition(answers: list[AnswerPair]) -> str:
    """A warning if steered answers repeat themselves much more than vanilla's: the strength is too high."""
    from ..metrics.words import repetition

    shares = []
    for texts in zip(*((answer.vanilla, answer.steered) for answer in answers), strict=True):
        found = repetition(texts, [str(number) for number in range(len(answers))]).total()
        shares.append(float(found["distinct_2"] / found["sequences_2"]) if found["sequences_2"] else 1.0)
    vanilla, steered = shares
    if steered >= min(0.7, vanilla - 0.2):
        return ""
    return (
        f"Warning: steered answers repeat themselves (distinct pairs of words {steered:.0%}, vanilla "
        f"{vanilla:.0%}): alpha_max or contrast is too high for this model."
    )


def _print_answer(image: _NamedImage, answer: AnswerPair, trace: bool, rule: str = "") -> None:
    """Print which image an answer is about and why it is shown, its texts, and what is to be said about them."""
    from ..metrics.chair import marked
    from ..runtime.report import Table

    typer.echo(f"\n{rule}:\nimage:   {image.title}" if rule else f"\nimage:   {image.title}")
    named = {"vanilla": answer.vanilla, "steered": answer.steered}
    for name, text in named.items():
        typer.echo(f"{name}: {marked(text, image.present)}")
    if image.present is not None:
        wrong = [f"{name} {', '.join(image.absent(text)) or 'nothing'}" for name, text in named.items()]
        typer.echo(f"not in the image: {'; '.join(wrong)}")
    traced = answer.traced.trace
    gates = [gate for gate in traced["gate"] if gate > 0]
    summary = f"steered tokens: {len(gates)} of {len(traced['gate'])}"
    if gates:
        push = 100 * sum(traced["push"]) / len(traced["push"])
        summary += (
            f"; gate {_range(gates)}; similarity {_range(traced['similarity'])}; push {push:.1f} % of the hidden state"
        )
    typer.echo(summary)
    if trace:
        columns = zip(answer.traced.tokens, *(traced[name] for name in ("similarity", "gate", "push")), strict=True)
        rows = [[token, f"{s:+.3f}", f"{g:.3f}", f"{100 * push:.1f} %"] for token, s, g, push in columns]
        headings = ["token", "similarity s", "gate g", "push / hidden state"]
        Table(headings, rows, "what RUDDER saw and did, token by token").print()


def _range(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f} on average ({min(values):.3f} to {max(values):.3f})"


def _answer_record(image: _NamedImage, answer: AnswerPair) -> dict[str, Any]:
    """An answer in the JSON document, whose settings are those of all images."""
    record: dict[str, Any] = {"image": image.name, "vanilla": answer.vanilla, "steered": answer.steered}
    record |= {"tokens": answer.traced.tokens, **answer.traced.trace}
    if image.present is not None:
        record["present"] = sorted(image.present)
        record["absent"] = {name: image.absent(record[name]) for name in ("vanilla", "steered")}
    return record


@dataclass(frozen=True)
class _NamedImage:
    """An image, its name, and the COCO categories in it if they are known."""

    name: str
    read: Callable[[], Image]  # when its turn comes: the images of a folder need not fit into memory
    present: frozenset[str] | None

    @property
    def title(self) -> str:
        """The name, with what is in the image if that is known."""
        return self.name if self.present is None else f"{self.name} ({', '.join(sorted(self.present))})"

    def absent(self, text: str) -> list[str]:
        """The objects that a text names although they are not in the image, in order; none if that is not known."""
        from ..metrics.chair import absent

        return [] if self.present is None else [span.category for span in absent(text, self.present)]


def _read_images(sources: list[str], limit: int | None) -> list[_NamedImage]:
    """The images, with the objects in them where the image is one of the examples.

    Raises:
        ValueError: An image cannot be read, or a folder has none.
    """
    from ..evaluate.tasks.captions import image_files
    from ..hub.images import read_image

    names: list[str] = []
    for given in sources:
        inside = [str(path) for path in image_files(Path(given))] if Path(given).is_dir() else [given]
        if not inside:
            raise ValueError(f"There are no images in {given}.")
        names += inside
    found = []
    for name in names[:limit]:
        image = read_image(name, TIMEOUT)
        from ..scenes.embedded import examples, recognise_example  # slow, and not needed to refuse what is no image

        read = partial(read_image, name if Path(name).is_file() else image)
        example = recognise_example(image)
        found.append(_NamedImage(name, read, frozenset(examples()[example - 1].names) if example else None))
    return found


def _examples(number: int | None) -> list[_NamedImage]:
    """The example images, or one of them, counted from 1.

    Raises:
        ValueError: There is no such example.
    """
    from ..scenes.captions import noun
    from ..scenes.embedded import draw, examples

    scenes = list(enumerate(examples(), start=1))
    if number is not None and number > len(scenes):
        raise ValueError(f"There are {len(scenes)} example images: --example must be 1 to {len(scenes)}.")
    return [
        _NamedImage(f"scene {n}, {noun(scene.place)}", partial(draw, scene), frozenset(scene.names))
        for n, scene in scenes
        if number in (None, n)
    ]
