"""`rudder generate`: the answer of a model to an image, without and with RUDDER."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import choose_device, copyable, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from PIL.Image import Image

    from .ask import Answer

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
    contrast: Annotated[
        float | None, typer.Option(help="Beyond the paper: lambda of the image-value contrast (0: off).")
    ] = None,
    contrast_first_layer: Annotated[int | None, typer.Option(help="First layer of the contrast.")] = None,
    contrast_after: Annotated[int | None, typer.Option(help="Answer tokens before the contrast.")] = None,
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
    dtype: options.DtypeOption = "auto",
) -> None:
    """Answer a question about images, without and with RUDDER, and mark objects that are not there.

    Settings that are not given come from the model's preset. Models without one need --layer and --alpha-max.
    """
    gate = ("k", "c", "g_min", "g_max")
    others = ("norm_cap", "steer_first_token", "contrast", "contrast_first_layer", "contrast_after")
    settings = options.given_settings(locals(), "layer", "mode", "alpha_max", *gate, *others)
    with refusing_bad_input():
        if stream and as_json:
            raise ValueError("--stream prints words as they come and --json one document: choose one of them.")
        shown = _read_images(images, annotations) if images else [_example(example)]
    with reporting_failure():
        with refusing_bad_input():
            from ..runtime.models import load_steered
            from ..runtime.progress import ProgressBar
            from ..scenes.embedded import NOTE
            from .ask import ask

            steered, processor = load_steered(model, settings, choose_device(device), dtype)
        note = NOTE if model is None else None
        used = f"mode {steered.config.mode}, layer {steered.handle.layer}, alpha_max {steered.config.alpha_max:g}"
        heading = f"prompt:  {prompt}\nrudder:  {used}, k {steered.config.k:g}"
        if steered.config.contrast:
            heading += f", contrast {steered.config.contrast:g} (beyond the paper)"

        def begin(image: _NamedImage) -> None:
            """Print an image's title, and before the first one what holds for all."""
            if image is shown[0]:
                typer.echo(f"{note}\n\n{heading}" if note else heading)
            typer.echo(f"\nimage:   {image.title}")

        size = 1 if stream else batch_size
        answers: list[Answer] = []
        for start in range(0, len(shown), size):
            part = shown[start : start + size]
            if stream:
                begin(part[0])
            with ProgressBar(shown=not (stream or as_json)) as bar:
                bar("images", start, len(shown))
                found = ask(steered, processor, [one.image for one in part], prompt, max_new_tokens, compare, stream)
            answers += found
            for image, answer in zip(part, found, strict=True) if not as_json else ():
                if not stream:
                    begin(image)
                _print_answer(image, answer, not stream, trace)
        if as_json:
            document = {
                "model": model or "embedded:llava",
                "note": note,
                "prompt": prompt,
                "settings": answers[0].settings,
                "answers": list(map(_record, shown, answers)),
            }
            typer.echo(json.dumps(document, indent=2))


def _print_answer(image: _NamedImage, answer: Answer, texts: bool, trace: bool) -> None:
    """Print the texts of an answer, unless they were streamed, and what is to be said about them."""
    from ..metrics.highlight import marked

    if texts:
        for name, text in answer.texts.items():
            typer.echo(f"{name}: {marked(text, image.present)}")
    if image.present is not None:
        wrong = [f"{name} {', '.join(image.absent(text)) or 'nothing'}" for name, text in answer.texts.items()]
        typer.echo(f"not in the image: {'; '.join(wrong)}")
    typer.echo(answer.summary())
    if trace:
        answer.trace_table().print()


def _record(image: _NamedImage, answer: Answer) -> dict[str, Any]:
    """An answer in the JSON document, whose settings are those of all images."""
    record = {"image": image.name, **asdict(answer)}
    record.pop("settings")
    if image.present is not None:
        record["present"] = sorted(image.present)
        record["absent"] = {name: image.absent(text) for name, text in answer.texts.items()}
    return record


@dataclass(frozen=True)
class _NamedImage:
    """An image, its name, and the COCO categories in it if they are known."""

    name: str
    image: Image
    present: frozenset[str] | None

    @property
    def title(self) -> str:
        """The name, with what is in the image if that is known."""
        return self.name if self.present is None else f"{self.name} ({', '.join(sorted(self.present))})"

    def absent(self, text: str) -> list[str]:
        """The objects that a text names although they are not in the image, in order; none if that is not known."""
        from ..metrics.highlight import absent

        return [] if self.present is None else [span.category for span in absent(text, self.present)]


def _read_images(paths: list[Path], annotations: Path | None) -> list[_NamedImage]:
    """The images with what is known of them, from the given annotations or from those beside the image.

    Raises:
        ValueError: An image cannot be read, or the annotations do not fit.
    """
    from ..evaluate.tasks.base import read_image
    from ..metrics.chair import ground_truth
    from ..metrics.coco import read_coco

    tables: dict[Path, dict[str, frozenset[str]]] = {}
    found = []
    for path in paths:
        image, source = read_image(path), annotations or _annotations_beside(path)
        if source is not None and source not in tables:
            data = read_coco(source)
            truth = ground_truth(data)
            tables[source] = {name: truth[number] for number, name in data.files.items()}
        present = None if source is None else tables[source].get(path.name)
        if annotations is not None and present is None:
            raise ValueError(f"{annotations} says nothing about {path.name}.")
        found.append(_NamedImage(str(path), image, present))
    return found


def _annotations_beside(image: Path) -> Path | None:
    """The COCO annotations that lie beside an image's folder, as `rudder_hf.scenes.coco` writes them."""
    if match := re.fullmatch(r"scenes_(\w+)_\d+\.png", image.name):
        folders = (image.parent / "annotations", image.parent.parent / "annotations")
        files = (folder / f"instances_{match.group(1)}.json" for folder in folders)
        return next((file for file in files if file.is_file()), None)
    return None


def _example(number: int) -> _NamedImage:
    """One of the example images, counted from 1."""
    from ..scenes.captions import noun
    from ..scenes.embedded import example_image, examples

    scenes = examples()
    if number > len(scenes):
        raise ValueError(f"There are {len(scenes)} example images: --example must be 1 to {len(scenes)}.")
    scene = scenes[number - 1]
    return _NamedImage(f"example {number}, {noun(scene.place)}", example_image(number), frozenset(scene.names))
