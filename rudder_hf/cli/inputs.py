"""The images that `rudder generate` is asked about, and what is known to be in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class NamedImage:
    """An image, its name, and the COCO categories in it if they are known."""

    name: str
    image: Image.Image
    present: frozenset[str] | None

    @property
    def title(self) -> str:
        """The name, with what is in the image if that is known."""
        return self.name if self.present is None else f"{self.name} ({', '.join(sorted(self.present))})"

    def absent(self, text: str) -> list[str]:
        """The objects that a text names although they are not in the image, in order; none if that is not known."""
        from ..metrics.highlight import absent

        return [] if self.present is None else [span.category for span in absent(text, self.present)]


def find_images(paths: list[Path], example: int, annotations: Path | None) -> list[NamedImage]:
    """The images with what is known of them; without paths, an example.

    Raises:
        ValueError: An image cannot be read, there is no such example, or the annotations do not fit.
    """
    if not paths:
        return [_example(example)]
    from ..evaluate.tasks.base import read_image
    from ..metrics.highlight import annotations_beside, objects_by_file

    tables: dict[Path, dict[str, frozenset[str]]] = {}
    found = []
    for path in paths:
        image, source = read_image(path), annotations or annotations_beside(path)
        if source is not None and source not in tables:
            tables[source] = objects_by_file(source)
        present = None if source is None else tables[source].get(path.name)
        if annotations is not None and present is None:
            raise ValueError(f"{annotations} says nothing about {path.name}.")
        found.append(NamedImage(str(path), image, present))
    return found


def _example(number: int) -> NamedImage:
    """One of the example images, counted from 1."""
    from ..scenes.captions import noun
    from ..scenes.embedded import example_image, examples

    scenes = examples()
    if number > len(scenes):
        raise ValueError(f"There are {len(scenes)} example images: --example must be 1 to {len(scenes)}.")
    scene = scenes[number - 1]
    return NamedImage(f"example {number}, {noun(scene.place)}", example_image(number), frozenset(scene.names))
