"""Ctrl-C: says at once what is kept and stops the command; a second one ends it on the spot.

Python raises KeyboardInterrupt between two of its own steps, and one step may be a forward pass of many seconds. So a
thread waits beside the command, which the signal itself wakes. It prints the message, and ends the process if the
command has not stopped soon. Results are written so that nothing finished is lost or torn, whenever a process ends.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from .common import INTERRUPTED

PATIENCE = 2.0
"""Seconds that a command has to stop in after the message."""


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """A command of the command line that Ctrl-C ends with exit code 130, saying what its --out keeps."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        try:
            with _watched(given.get("out")):
                command(**given)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


@contextmanager
def _watched(out: Path | None) -> Iterator[None]:
    """Have a thread wait for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the signal is somebody else's
        return
    # Not when the signal comes, which may be in the middle of an import.
    from ..runtime.store import kept

    def message() -> str:
        if out is None:
            return "Interrupted."
        found = kept(out)
        if not found:
            return "Interrupted. Nothing was finished that could be kept."
        return f"Interrupted. Kept in {out}: {found}. Repeat the command to go on."

    listening, woken = socket.socketpair()
    woken.setblocking(False)
    earlier = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_wait_for_interrupt, args=(listening, message), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        woken.close()  # the thread ends, after it has printed what it has to
        watcher.join()
        listening.close()


def _wait_for_interrupt(signals: socket.socket, message: Callable[[], str]) -> None:
    received = signals.recv(1)
    while received and received[0] != signal.SIGINT:
        received = signals.recv(1)
    if not received:
        return  # the command has ended
    # Processes of one command, which `accelerate launch` numbers, are interrupted together, and one of them speaks.
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"\n{message()}", err=True)
    signals.settimeout(PATIENCE)
    try:
        stopped = not signals.recv(1)
    except TimeoutError:
        stopped = False
    if not stopped:
        os._exit(INTERRUPTED)
