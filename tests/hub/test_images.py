"""Images as people have them: turned by EXIF, behind a URL, in base64, damaged."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.evaluate.tasks.captions import images_task
from rudder_hf.hub.images import read_image
from rudder_hf.hub.pipeline import encode_prompts
from tests.support.toy import toy_processor

ORIENTATION = 0x0112
SIDEWAYS = 6  # the camera was held on its side: to be turned clockwise by 90 degrees


@pytest.fixture
def upright() -> Image.Image:
    """Red above, blue below, higher than wide."""
    pixels = numpy.zeros((48, 32, 3), dtype=numpy.uint8)
    pixels[:24, :, 0] = pixels[24:, :, 2] = 255
    return Image.fromarray(pixels)


@pytest.fixture
def turned(upright: Image.Image, tmp_path: Path) -> Path:
    """The same as a camera stores it: lying, with the orientation in EXIF."""
    exif = Image.Exif()
    exif[ORIENTATION] = SIDEWAYS
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    return tmp_path / "turned.png"


def test_the_orientation_in_exif_is_followed_once(turned: Path, upright: Image.Image) -> None:
    image = read_image(turned)
    assert image.mode == "RGB"
    assert image.tobytes() == upright.tobytes()
    assert read_image(image).tobytes() == upright.tobytes()
    # As a user opens it, and as `convert` leaves it: the orientation stays with the image.
    for opened in (Image.open(turned), Image.open(turned).convert("RGB")):
        assert read_image(opened).tobytes() == upright.tobytes()


def test_every_command_and_pipeline_sees_it_upright(turned: Path, upright: Image.Image) -> None:
    """Commands read by tasks or by `read_image`; what is given as a PIL image is turned where it is encoded."""
    task = images_task(DataOptions(data=turned.parent))
    assert task.image(task.samples[0]).tobytes() == upright.tobytes()
    processor = toy_processor()

    def pixels(image: Any) -> Any:
        return encode_prompts(processor, [image], ["What is this?"])["pixel_values"]

    assert pixels(Image.open(turned)).equal(pixels(upright))
    assert not pixels(upright.transpose(Image.Transpose.ROTATE_90)).equal(pixels(upright))


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_urls_and_base64(address: str, turned: Path, upright: Image.Image) -> None:
    (turned.parent / "page.html").write_text("<p>no image</p>")
    assert read_image(f"{address}/turned.png?size=large").tobytes() == upright.tobytes()
    encoded = base64.b64encode(turned.read_bytes()).decode()
    for text in (encoded, f"data:image/png;base64,{encoded}"):
        assert read_image(text).tobytes() == upright.tobytes()
    for wrong in (f"{address}/none.png", f"{address}/page.html", "http://127.0.0.1:9/a//b.png"):
        with pytest.raises(ValueError, match=f"{wrong} cannot be read"):
            read_image(wrong, timeout=5)


def test_what_is_no_image_is_refused_by_name(turned: Path) -> None:
    cut = turned.with_name("cut.png")
    cut.write_bytes(turned.read_bytes()[:80])
    for source, words in (
        (turned.with_name("none.png"), r"there is no image .*none\.png"),
        (cut, r"cut\.png cannot be read"),
        (turned.parent, "cannot be read"),
        (3, "3 cannot be read"),
        ("x" * 5000, r"there is no image x{40}\.\.\."),
        ("cats", "there is no image cats"),
    ):
        with pytest.raises(ValueError, match=words):
            read_image(source)
