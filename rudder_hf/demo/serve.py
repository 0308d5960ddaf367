"""Serve the page: what `rudder demo` and a Hub Space have in common. Loads gradio only when it is called."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROMPT = "Please help me describe the image in detail"
HERE = "127.0.0.1"


def check_gradio() -> None:
    """Refuse to start without gradio, before anything large is loaded.

    Raises:
        ImportError: gradio is not installed; the message says how to install it.
    """
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise ImportError("The demo needs gradio: pip install 'rudder-hf[demo]'.")


def check_port(port: int) -> None:
    """Refuse a port that is taken, before anything large is loaded.

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


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    model: Any, processor: Any, name: str, *, port: int | None, max_new_tokens: int = 128, note: str | None = None,
    eager: bool = True, on_space: bool = False, open_browser: bool = False,
) -> Iterator[str]:  # fmt: skip
    """While the context is open, the page is served; yields its address.

    Pictures that visitors upload live in a folder of their own, which goes with the server.

    Args:
        model: A `RudderForConditionalGeneration`.
        processor: Its processor.
        name: How the page calls the model.
        port: Where to listen; 0 for any free port, None for what the environment says.
        max_new_tokens: Longest answer.
        note: A remark about the model.
        eager: Whether an example is answered as soon as the page opens.
        on_space: Whether a Hub Space serves the page to the public: it listens where the Space says, and folders of
            the machine are not told. Otherwise only this machine can reach it.
        open_browser: Whether to open the page in a browser.
    """
    check_gradio()
    with tempfile.TemporaryDirectory(prefix="rudder-demo-") as folder:
        examples, uploads = Path(folder, "examples"), Path(folder, "uploads")
        examples.mkdir()
        # Before gradio is imported, and for this process alone.
        with _environment(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(uploads)):
            from .engine import Engine
            from .page import Page, launch

            page = Page(Engine(model, processor, PROMPT, max_new_tokens), name, PROMPT, note, not on_space, eager)
            blocks = page.build(examples)
            try:
                chosen = free_port() if port == 0 else port
                yield launch(blocks, address=None if on_space else HERE, port=chosen, open_browser=open_browser)
            finally:
                blocks.close(verbose=False)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables of this process, for the time of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve_until_interrupted(said: Callable[[str], None], *args: Any, **options: Any) -> None:
    """Serve the page until Ctrl-C or SIGTERM; `said` is told its address. Arguments as for `serving`."""
    ended = threading.Event()
    # Without it a terminated server would leave its visitors' pictures behind.
    earlier = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with serving(*args, **options) as url:
            said(url)
            ended.wait()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, earlier)
