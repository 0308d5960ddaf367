"""The pictures that `rudder generate` is asked about, and what is known to be in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

if TYPE_CHECKING:
    from .ask import Answer


@dataclass(frozen=True)
class Subject:
    """A picture, how it is called, and the COCO categories in it if they are known."""

    name: str
    picture: Image.Image
    present: frozenset[str] | None

    @property
    def title(self) -> str:
        """The name, with what is in the picture if that is known."""
        return self.name if self.present is None else f"{self.name} ({', '.join(sorted(self.present))})"

    def marked(self, text: str) -> str:
        """An answer with a mark behind each object that is not in the picture."""
        from ..metrics import highlight as marks

        return marks.marked(text, self.present)

    def absent_words(self, text: str) -> str:
        """The objects that an answer names although they are not in the picture, or "nothing"."""
        from ..metrics import highlight as marks

        wrong = [span.category for span in marks.absent(text, self.present or frozenset())]
        return ", ".join(wrong) or "nothing"

    def record(self, answer: Answer) -> dict[str, Any]:
        """An answer as JSON values."""
        from ..metrics import highlight as marks

        record: dict[str, Any] = {"image": self.name, **answer.record()}
        if self.present is not None:
            told = {"vanilla": answer.vanilla, "steered": answer.steered}
            record["present"] = sorted(self.present)
            record["absent"] = {
                name: [span.category for span in marks.absent(text, self.present)]
                for name, text in told.items()
                if text is not None
            }
        return record


def subjects(paths: list[Path], example: int, annotations: Path | None) -> list[Subject]:
    """The pictures with what is known of them.

    Raises:
        ValueError: A picture cannot be read, there is no such example, or the annotations do not fit.
    """
    pictures = [read_picture(path) for path in paths]  # before anything large is imported
    if not paths:
        return [_example(example)]
    from ..metrics import highlight as marks

    tables: dict[Path, dict[str, frozenset[str]]] = {}
    found = []
    for path, picture in zip(paths, pictures, strict=True):
        source = annotations or marks.annotations_beside(path)
        if source is not None and source not in tables:
            tables[source] = marks.objects_by_file(source)
        present = None if source is None else tables[source].get(path.name)
        if annotations is not None and present is None:
            raise ValueError(f"{annotations} says nothing about {path.name}.")
        found.append(Subject(str(path), picture, present))
    return found


def _example(number: int) -> Subject:
    """One of the example pictures, counted from 1."""
    from ..scenes.captions import noun
    from ..scenes.embedded import EXAMPLE_SCALE, draw, examples

    scenes = examples()
    if number > len(scenes):
        raise ValueError(f"There are {len(scenes)} example pictures: --example must be 1 to {len(scenes)}.")
    scene = scenes[number - 1]
    return Subject(f"example {number}, {noun(scene.place)}", draw(scene, EXAMPLE_SCALE), frozenset(scene.names))


def read_picture(path: Path) -> Image.Image:
    """Read a picture whole.

    Raises:
        ValueError: There is no such file, or it is not a picture that can be read.
    """
    if not path.exists():
        raise ValueError(f"There is no picture {path}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give pictures.")
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture that can be read.") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def batches(shown: list[Subject], size: int, quiet: bool) -> Iterator[list[Subject]]:
    """Parts of at most `size` pictures, with a progress bar on stderr if there are several."""
    parts = [shown[start : start + size] for start in range(0, len(shown), size)]
    if quiet or len(parts) == 1:
        yield from parts
        return
    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("pictures", total=len(shown))
        for part in parts:
            yield part
            bar.advance(task, len(part))
