"""What a task is: samples with pictures, prompts and what the answers are scored against."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image, UnidentifiedImageError


@dataclass(frozen=True)
class Sample:
    """One question about one picture.

    Attributes:
        id: Unique in the task; the seed of sampling is derived from it.
        image_id: The picture, as the data calls it.
        image: The picture's file name, or how it is made.
        prompt: What the model is asked.
        reference: What the answer is scored against, as JSON values.
    """

    id: str
    image_id: int | str
    image: str
    prompt: str
    reference: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Sample:
        """Read what `asdict` wrote."""
        return cls(**{name: record[name] for name in ("id", "image_id", "image", "prompt", "reference")})


class Task(ABC):
    """A set of samples.

    Attributes:
        kind: How answers are scored: "chair", "pope" or "mme".
        name: What users type.
        max_new_tokens: Longest answer unless the user says otherwise.
        samples: In a fixed order.
        data: Where the samples come from, for the result.
        notes: What users have to know about the data: counted warnings.
    """

    kind: ClassVar[str]
    max_new_tokens: ClassVar[int]

    def __init__(self, name: str, samples: list[Sample], data: dict[str, Any], notes: Iterable[str] = ()) -> None:
        self.name, self.samples, self.data, self.notes = name, samples, data, list(notes)
        if not samples:
            raise ValueError(f"The task {name} has no samples: check the data and the limit.")
        seen: set[str] = set()
        twice = sorted({sample.id for sample in samples if sample.id in seen or seen.add(sample.id)})  # type: ignore[func-returns-value]
        if twice:
            raise ValueError(f"{len(twice)} sample ids occur more than once in the data, such as {twice[0]!r}.")

    @abstractmethod
    def picture(self, sample: Sample) -> Image.Image:
        """The picture of a sample, in RGB.

        Raises:
            ValueError: It cannot be read.
        """

    def skip_unreadable(self, allowed: bool) -> list[str]:
        """Look at every picture before hours are spent, and leave out the samples whose picture cannot be read.

        Args:
            allowed: Whether to leave them out; without it, they are an error.

        Returns:
            The pictures that were left out.

        Raises:
            ValueError: There are some and they may not be left out, or none is left.
        """
        broken: dict[str, str] = {}
        good: set[str] = set()
        for sample in self.samples:
            if sample.image in broken or sample.image in good:
                continue
            try:
                self.picture(sample)
                good.add(sample.image)
            except ValueError as error:
                broken[sample.image] = str(error)
        if broken and not allowed:
            first = next(iter(broken.values()))
            raise ValueError(
                f"{len(broken)} of {len(broken) + len(good)} pictures cannot be read: {first} "
                "Repair them, or pass --skip-unreadable to leave them out; they are then counted in the result."
            )
        self.samples = [sample for sample in self.samples if sample.image not in broken]
        if not self.samples:
            raise ValueError("None of the pictures can be read.")
        if broken:
            self.notes.append(f"{len(broken)} unreadable pictures were left out: {', '.join(sorted(broken))}")
        return sorted(broken)

    def image_ids(self) -> list[int | str]:
        """The pictures that are evaluated, each once, in order."""
        return list(dict.fromkeys(sample.image_id for sample in self.samples))


class FolderTask(Task):
    """A task whose pictures are files in a folder."""

    def __init__(
        self, name: str, samples: list[Sample], data: dict[str, Any], images: Path, notes: Iterable[str] = ()
    ) -> None:
        super().__init__(name, samples, data, notes)
        if not images.is_dir():
            raise ValueError(f"There is no folder of pictures {images}: pass it as --images.")
        self.images = images

    def picture(self, sample: Sample) -> Image.Image:
        """Read the file."""
        return read_picture(self.images / sample.image)


def read_picture(path: Path) -> Image.Image:
    """Read a picture whole.

    Raises:
        ValueError: There is no such file, or it is damaged or no picture.
    """
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except FileNotFoundError:
        raise ValueError(f"There is no picture {path}.") from None
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def choose_ids(
    ids: Iterable[int | str], limit: int | None, seed: int, wanted: Sequence[int | str] | None = None
) -> list[Any]:
    """Choose pictures: those that are wanted, or `limit` of them drawn with the seed from the sorted ids, sorted.

    Raises:
        ValueError: Wanted ids are not there.
    """
    known = sorted(set(ids), key=lambda value: (isinstance(value, str), value))
    if wanted is not None:
        by_text = {str(value): value for value in known}
        missing = [value for value in wanted if str(value) not in by_text]
        if missing:
            raise ValueError(f"{len(missing)} of {len(wanted)} wanted image ids are not in the data: {missing[:5]}.")
        chosen = {by_text[str(value)] for value in wanted}
        return [value for value in known if value in chosen]
    if limit is None or limit >= len(known):
        return known
    chosen = set(random.Random(seed).sample(known, limit))
    return [value for value in known if value in chosen]


def samples_hash(samples: Sequence[Sample]) -> str:
    """Identifies what is asked and how it is scored."""
    text = json.dumps([asdict(sample) for sample in samples], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
