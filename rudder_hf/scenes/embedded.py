"""The models that ship with the package: trained on the synthetic scenes, with their RUDDER settings.

>>> model, processor = load()           # a steered LLaVA, seconds after installing
>>> image = example_image(1)
>>> scene = examples()[0]               # what is in it
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from ..core.configuration import RudderConfig
from ..hub.modeling import RudderForConditionalGeneration
from ..runtime.environment import files_digest
from .images import SIDE, Scene, file_name, split_scenes
from .images import draw as draw

DEFAULT = "llava"
STORED = 12  # of the examples, on the page
NOTE = "This is the embedded test bed: a small model that knows synthetic scenes only. Pass --model for a real one."
RECIPE = "recipe.json"  # of the training, in the folder of every model that was trained on the scenes
_MODELS = Path(__file__).parent / "models"


def names() -> tuple[str, ...]:
    """Return the names of the embedded models."""
    return tuple(sorted(path.parent.name for path in _MODELS.glob("*/config.json")))


def embedded_name(model: str | None) -> str | None:
    """Return the name in "embedded:NAME" or "embedded:FOLDER", the default for None, and None for any other model."""
    if model is None or model == "embedded":
        return DEFAULT
    return model.removeprefix("embedded:") if model.startswith("embedded:") else None


def folder(name: str = DEFAULT) -> Path:
    """Return the folder of an embedded model, for `from_pretrained` of the stock Auto classes.

    Args:
        name: One of `names()`, or the folder of another model that was trained on the scenes.

    Raises:
        ValueError: There is no such model.
    """
    if name in names():
        return _MODELS / name
    if (Path(name) / RECIPE).is_file():
        return Path(name)
    raise ValueError(
        f"there is no embedded model {name!r}; choose one of {', '.join(names())}, or the folder of a model that "
        "tools.train_scenes made"
    )


def config(name: str = DEFAULT, **settings: Any) -> RudderConfig:
    """Return the settings found for an embedded model on the calibration scenes, with `settings` on top.

    The record was written on the training machine. If the files match, its path becomes that of the local folder.
    """
    stored: RudderConfig = RudderConfig.from_pretrained(folder(name) / "rudder")
    stored.base_model_name_or_path = str(folder(name))
    model = (stored.calibration or {}).get("model") or {}
    if model.get("revision") == files_digest(folder(name)):
        model["name"] = str(folder(name))
    for key, value in settings.items():
        setattr(stored, key, value)
    return stored


def settings_for_methods(name: str = DEFAULT) -> dict[str, RudderConfig]:
    """Return settings by the name of the method that they were found for; those under "" are for all others."""
    own = {"": folder(name) / "rudder", "rudder-add": folder(name) / "rudder-add"}
    return {method: RudderConfig.from_pretrained(path) for method, path in own.items() if path.is_dir()}


def load(name: str = DEFAULT, **settings: Any) -> tuple[RudderForConditionalGeneration, Any]:
    """Load an embedded model, steered as calibrated or as `settings` say, and its processor."""
    base: Any = AutoModelForImageTextToText.from_pretrained(folder(name))
    processor: Any = AutoProcessor.from_pretrained(folder(name))  # type: ignore[no-untyped-call]
    return RudderForConditionalGeneration.from_base(base, config(name, **settings)), processor


@cache
def examples() -> list[Scene]:
    """Return the example scenes. No setting is chosen or checked on them."""
    return split_scenes("examples")


def example_image(number: int) -> Image.Image:
    """Draw an example image, counted from 1, in the size that the embedded models were trained on."""
    return draw(examples()[number - 1])


def write_examples(folder: Path) -> list[Path]:
    """Write the first example images as PNG files into a folder."""
    paths = [folder / file_name(scene, "examples") for scene in examples()[:STORED]]
    for number, path in enumerate(paths, start=1):
        example_image(number).save(path, optimize=True)
    return paths


def recognise_example(image: Image.Image) -> int | None:
    """Return the number of an example image, recognised by its pixels, or None for any other image."""
    return _example_numbers().get(image.convert("RGB").tobytes()) if image.size == (SIDE, SIDE) else None


@cache
def _example_numbers() -> dict[bytes, int]:
    return {draw(scene).tobytes(): number for number, scene in enumerate(examples(), start=1)}
