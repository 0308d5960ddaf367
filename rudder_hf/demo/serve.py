"""Serve the page of `rudder demo`. Loads gradio only when it is called."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..scenes.captions import DETAIL_PROMPT as PROMPT
from ..scenes.embedded import NOTE, embedded_name

HERE = "127.0.0.1"


def check_port(port: int) -> int:
    """A port that is free: the wanted one, or any for 0.

    Raises:
        ValueError: Another program listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HERE, port))
        except OSError as error:
            raise ValueError(
                f"Port {port} is not free ({error.strerror}): pass another --port, or 0 for any."
            ) from error
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    model: Any, processor: Any, name: str | None, port: int = 0, max_new_tokens: int = 128, open_browser: bool = False
) -> Iterator[str]:
    """Serve the page to this machine only, while the context is open; yields its address.

    Images that visitors upload live in a folder of their own, which goes with the server.

    Args:
        model: A `RudderForConditionalGeneration`.
        processor: Its processor.
        name: What the user calls the model; None is the embedded one.
        port: Where to listen; 0 for any free port.
        max_new_tokens: Longest answer.
        open_browser: Whether to open the page in a browser.
    """
    inside = embedded_name(name)
    with tempfile.TemporaryDirectory(prefix="rudder-demo-") as folder:
        files, uploads = Path(folder, "examples"), Path(folder, "uploads")
        files.mkdir()
        # Before gradio is imported.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(uploads))
        from .engine import Engine
        from .page import Page, launch

        page = Page(
            Engine(model, processor, max_new_tokens),
            name=str(name) if inside is None else f"embedded:{inside}",
            prompt=PROMPT,
            note="" if inside is None else NOTE,
            knows_scenes=inside is not None,
            folder=files,
        )
        try:
            yield launch(page.blocks, HERE, check_port(port), open_browser)
        finally:
            page.blocks.close(verbose=False)
