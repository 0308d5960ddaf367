"""`rudder generate`: the answer of a model to an image, without and with RUDDER."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import choose_device, copyable, refuse_typed, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from PIL.Image import Image

    from .ask import Answer

EXAMPLES = copyable(
    "rudder generate",
    "rudder generate --contrast 0.6",
    "rudder generate --example 3 --trace",
    "rudder generate --alpha-max 8 --set span=text --no-compare --stream",
    "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
    "rudder generate photos --model FOLDER --layer 20 --alpha-max 5 --json",
)
PROMPT = "Please help me describe the image in detail"
SHOWN = 3  # of the examples, the first ones; all of them are counted
TIMEOUT = 30.0  # seconds for an image behind a URL


def generate(
    context: typer.Context,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Files, folders or URLs; none shows examples.")
    ] = None,
    model: options.ModelOption = None,
    prompt: Annotated[str, typer.Option(help="Question about each image.")] = PROMPT,
    layer: options.LayerOption = None,
    mode: options.ModeOption = None,
    alpha_max: options.AlphaMaxOption = None,
    k: options.SensitivityOption = None,
    contrast: options.ContrastOption = None,
    settings: options.SettingsOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images, from the first on.")] = None,
    example: Annotated[
        int | None, typer.Option(min=1, help="Number of an example instead of the first three.")
    ] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="COCO instances file: marks objects that are not in the image.")
    ] = None,
    batch_size: options.BatchSizeOption = 8,
    no_compare: Annotated[bool, typer.Option("--no-compare", help="Leave the unsteered answer out.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show similarity, gate and push of every token.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print words as they come, image by image.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
) -> None:
    """Answer a question about images, without and with RUDDER, and mark objects that are not there.

    Settings that are not given come from the model's preset. Models without one need --layer and --alpha-max.
    """
    given = dict(locals())
    with refusing_bad_input():
        if stream and as_json:
            raise ValueError("--stream prints words as they come and --json one document: choose one of them.")
        if images:
            refuse_typed(context, "is for the examples, which are shown where no image is given", "example")
        else:
            why = "is for images that are given; of the examples, --example N shows one"
            refuse_typed(context, why, "limit", "annotations")
        found = _read_images(images, annotations, limit) if images else _examples(example)
        wanted = options.given_settings(given)
    with reporting_failure():
        with refusing_bad_input():
            from ..runtime.models import load_steered
            from ..runtime.progress import ProgressBar
            from ..scenes.embedded import NOTE, embedded_name
            from .ask import ask

            steered, processor = load_steered(model, wanted, choose_device(device), dtype)
        # The first examples are shown; a model that knows them answers all, for the count.
        shown = SHOWN if not images and example is None else len(found)
        counted = shown < len(found) and prompt == PROMPT and embedded_name(model) is not None
        found = found if counted else found[:shown]
        beyond = "  (the contrast is beyond the paper)" if steered.config.contrast else ""
        heading = f"prompt:  {prompt}\nrudder:  {steered.config.expression()}{beyond}\n"

        def begin(image: _NamedImage) -> None:
            """Print an image's title, and before the first one what holds for all."""
            if image is found[0]:
                typer.echo(f"{NOTE}\n\n{heading}" if model is None else heading, nl=False)
            typer.echo(f"\nimage:   {image.title}")

        answers: list[Answer] = []
        while (start := len(answers)) < len(found):
            aloud = stream and start < shown
            part = found[start : start + (1 if aloud else batch_size)]
            if aloud:
                begin(part[0])
            with ProgressBar(shown=not (aloud or as_json)) as bar:
                bar("images", start, len(found))
                pixels = [one.read() for one in part]
                answers += ask(steered, processor, pixels, prompt, max_new_tokens, not no_compare, aloud)
            for image, answer in zip(found[start:shown], answers[start:], strict=False) if not as_json else ():
                if not aloud:
                    begin(image)
                _print_answer(image, answer, not aloud, trace)
        totals = _count(found, answers) if counted else {}
        if as_json:
            document = {
                "model": model or "embedded:llava",
                "note": NOTE if model is None else None,
                "prompt": prompt,
                "rudder": steered.config.expression(),
                "settings": answers[0].settings,
                "answers": list(map(_record, found[:shown], answers)),
                "absent_of_named": totals,
            }
            typer.echo(json.dumps(document, indent=2))
        elif totals:
            counts = ", ".join(f"{name} {absent} of {named}" for name, (absent, named) in totals.items())
            typer.echo(f"\nabsent objects named in all {len(found)} examples: {counts}")
            if not wanted and (shown_by := _calibration_line(steered.config.calibration or {})):
                typer.echo(shown_by)


def _calibration_line(record: dict[str, Any]) -> str:
    """What held-out images showed of stored settings, which a handful of examples cannot; empty if nothing did."""
    from ..runtime.report import change_in_points, number

    held_out = record.get("held_out") or {}
    parts = []
    for name, label in (("chair_i", "absent among named"), ("recall", "named of present"), ("f1", "F1")):
        if name not in held_out or record.get("refusal"):
            return ""
        before, after = (number(100 * held_out[name][end], "percent") for end in ("left", "right"))
        parts.append(f"{label} {before} -> {after} % ({change_in_points(held_out[name])})")
    return f"calibration, {len(record.get('held_out_images', ()))} held-out images: {', '.join(parts)}"


def _count(images: list[_NamedImage], answers: list[Answer]) -> dict[str, tuple[int, int]]:
    """For vanilla and steered, how many absent objects and how many objects at all are named, once for each image."""
    from ..metrics.highlight import mentions

    totals: dict[str, tuple[int, int]] = {}
    for image, answer in zip(images, answers, strict=True):
        for name, text in answer.texts.items():
            absent, named = totals.get(name, (0, 0))
            all_named = {span.category for span in mentions(text)}
            totals[name] = (absent + len(set(image.absent(text))), named + len(all_named))
    return totals


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
    read: Callable[[], Image]  # when its turn comes: the images of a folder need not fit into memory
    present: frozenset[str] | None

    @property
    def title(self) -> str:
        """The name, with what is in the image if that is known."""
        return self.name if self.present is None else f"{self.name} ({', '.join(sorted(self.present))})"

    def absent(self, text: str) -> list[str]:
        """The objects that a text names although they are not in the image, in order; none if that is not known."""
        from ..metrics.highlight import absent

        return [] if self.present is None else [span.category for span in absent(text, self.present)]


def _read_images(sources: list[str], annotations: Path | None, limit: int | None) -> list[_NamedImage]:
    """The images with what is known of them, from the given annotations or from those beside the image.

    Raises:
        ValueError: An image cannot be read, a folder has none, or the annotations do not fit.
    """
    from ..evaluate.tasks.captions import image_files
    from ..hub.images import as_rgb, read_image
    from ..metrics.chair import ground_truth
    from ..metrics.coco import read_coco

    names: list[str] = []
    for given in sources:
        inside = [str(path) for path in image_files(Path(given))] if Path(given).is_dir() else [given]
        if not inside:
            raise ValueError(f"There are no images in {given}.")
        names += inside
    tables: dict[Path, dict[str, frozenset[str]]] = {}
    found = []
    for name in names[:limit]:
        path, image = Path(name), read_image(name, TIMEOUT)
        read = partial(read_image, name) if path.is_file() else partial(as_rgb, image)
        source = annotations or _annotations_beside(path)
        if source is not None and source not in tables:
            data = read_coco(source)
            truth = ground_truth(data)
            tables[source] = {file: truth[number] for number, file in data.files.items()}
        present = None if source is None else tables[source].get(path.name)
        if annotations is not None and present is None:
            raise ValueError(f"{annotations} says nothing about {path.name}.")
        found.append(_NamedImage(name, read, present))
    return found


def _annotations_beside(image: Path) -> Path | None:
    """The COCO annotations that lie beside an image's folder, as `rudder_hf.scenes.coco` writes them."""
    if match := re.fullmatch(r"scenes_(\w+)_\d+\.png", image.name):
        folders = (image.parent / "annotations", image.parent.parent / "annotations")
        files = (folder / f"instances_{match.group(1)}.json" for folder in folders)
        return next((file for file in files if file.is_file()), None)
    return None


def _examples(number: int | None) -> list[_NamedImage]:
    """The example images, or one of them, counted from 1."""
    from ..scenes.captions import noun
    from ..scenes.embedded import example_image, examples

    scenes = dict(enumerate(examples(), start=1))
    if number is not None and number not in scenes:
        raise ValueError(f"There are {len(scenes)} example images: --example must be 1 to {len(scenes)}.")
    return [
        _NamedImage(f"example {n}, {noun(scene.place)}", partial(example_image, n), frozenset(scene.names))
        for n, scene in scenes.items()
        if number in (None, n)
    ]
