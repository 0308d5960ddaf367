"""`rudder demo`: a page to try RUDDER with an image of your own."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import Annotated

import typer

from . import options
from .common import choose_device, copyable, refusing_bad_input, reporting_failure, require_extra

EXAMPLES = copyable(
    "rudder demo",
    "rudder demo --port 0 --no-open",
    "rudder demo --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
    "rudder demo --model FOLDER --set layer=20 --set alpha_max=5",
)


def demo(
    model: options.ModelOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 7860,
    settings: options.SettingsOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
) -> None:
    """Open a page on this machine: an image in, the model's answer without and with RUDDER side by side.

    The page is served to this machine only and loads nothing from elsewhere. Ctrl-C ends it.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..demo.serve import check_port, serving

        require_extra("demo", gradio="gradio")
        check_port(port)
        wanted = options.given_settings(given)
    with reporting_failure():
        with refusing_bad_input():
            from ..runtime.models import load_steered

            steered, processor = load_steered(model, wanted, choose_device(device), dtype)
        # A terminated server removes its visitors' images, too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), serving(steered, processor, model, port, max_new_tokens, not no_open) as url:
            typer.echo(f"The page is at {url} (for this machine only; Ctrl-C ends it).")
            threading.Event().wait()
