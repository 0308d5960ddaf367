"""Read images as users have them. Imports no models, so that a command refuses a wrong path at once."""

from __future__ import annotations

import os
from typing import Any

from PIL import Image
from transformers.image_utils import load_image

_LONGEST = 200  # characters of a name or a reason that a message repeats


def read_image(source: Any, timeout: float | None = None) -> Image.Image:
    """Load an image from a path, URL, base64 string or PIL image, upright (as its EXIF orientation says) and in RGB.

    Raises:
        ValueError: There is no such image, or it cannot be fetched, is damaged, or is something else.
    """
    given = os.fspath(source) if isinstance(source, os.PathLike) else source
    try:
        return load_image(given, timeout)  # type: ignore[no-any-return]
    except Exception as error:  # Each library on the way has errors of its own.
        shown = str(given) if len(str(given)) <= _LONGEST else f"{str(given)[:40]}..."
        # A name without a file, such as "cats", is tried as base64.
        if isinstance(given, str) and not os.path.exists(given) and not given.startswith(("http", "data:image/")):
            raise ValueError(f"there is no image {shown}: give a file, a URL or base64") from error
        reason = str(error).partition("\n")[0][:_LONGEST] or type(error).__name__
        raise ValueError(f"{shown} cannot be read as an image: {reason}") from error
