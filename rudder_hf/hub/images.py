"""The one reader of images, as people have them."""

from __future__ import annotations

import base64
import os
from io import BytesIO
from typing import Any

import huggingface_hub
import numpy
from PIL import Image, ImageOps, UnidentifiedImageError


def read_image(source: Any, timeout: float | None = None) -> Image.Image:
    """An image whole, upright and in RGB, from a file, an http or https URL, a base64 string or a PIL image.

    Raises:
        ValueError: There is no such image, or it cannot be fetched, is damaged, or is something else.
    """
    if isinstance(source, Image.Image):
        return as_rgb(source)
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"an image is a path, URL, base64 string or PIL image, not {type(source).__name__}")
    name = os.fspath(source)
    shown = name if len(name) < 1000 else f"{name[:40]}..."
    file = _image_file(name, timeout)
    if file is None:
        raise ValueError(f"there is no image {shown}")
    try:
        with Image.open(file) as image:
            return as_rgb(image)
    except UnidentifiedImageError:
        # A name without a file, such as "cats", may be base64 by chance.
        known = isinstance(file, str) or name.startswith(("http://", "https://", "data:image/"))
        raise ValueError(f"{shown} is not an image" if known else f"there is no image {shown}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{shown} cannot be read: {error}") from error


def _image_file(name: str, timeout: float | None) -> str | BytesIO | None:
    """What PIL opens: the path of a file, or the bytes behind a URL or in a base64 string; None if it is neither."""
    if name.startswith(("http://", "https://")):
        return BytesIO(_fetch(name, timeout))
    if os.path.exists(name):
        return name
    try:
        encoded = name.partition(",")[2] if name.startswith("data:image/") else name
        return BytesIO(base64.b64decode("".join(encoded.split()), validate=True))
    except ValueError:
        return None


def _fetch(url: str, timeout: float | None) -> bytes:
    # The client that the Hub is read with: it has the user's proxies and certificates, and is imported when used.
    try:
        answer = huggingface_hub.get_session().get(url, timeout=timeout, follow_redirects=True)
        return bytes(answer.raise_for_status().content)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{url} cannot be fetched: {reason}") from error


def as_rgb(image: Image.Image) -> Image.Image:
    """A PIL image upright (as its EXIF orientation says) and in RGB; numbers beyond 8 bits are scaled, not clipped."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        pixels = numpy.nan_to_num(numpy.asarray(image, dtype=numpy.float64))
        low, high = float(pixels.min()), float(pixels.max())
        # The range that the numbers are meant to have: [0, 1] for fractions, that of 8 or of 16 bits, else their own.
        ranges = [(0, 1)] * (image.mode == "F") + [(0, 255)] * (image.mode in ("I", "F")) + [(0, 65535)]
        low, high = next(((a, b) for a, b in ranges if a <= low and high <= b), (low, high))
        image = Image.fromarray(((pixels - low) * (255 / ((high - low) or 1))).round().astype(numpy.uint8))
    return image.convert("RGB")
