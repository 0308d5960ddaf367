"""Runs the model for the page of `rudder demo`, and serves the page. Loads gradio only when it is served.

Both answers are written in one batch, token by token, one visitor after the other.
"""

from __future__ import annotations

import math
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..analyze.tokens import GrowingAnswer
from ..core.generate import RUNNING
from ..hub.modeling import RudderForConditionalGeneration
from ..runtime.answers import encode, end_ids
from ..scenes.captions import DETAIL_PROMPT as PROMPT
from ..scenes.embedded import NOTE, embedded_name
from .view import SETTINGS, Frame, View

HERE = "127.0.0.1"
MEASURED = ("similarity", "gate", "push")


def newest_observation() -> tuple[Tensor, ...] | None:
    """Return similarity, gate and push of the newest token, each (rows,); None outside of a traced generation."""
    observed = getattr(RUNNING.get()[1], "observed", None)
    return None if observed is None else tuple(values[:, -1].detach().float() for values in observed)


class _Streamer(BaseStreamer):
    """Hands each step's tokens on, with what RUDDER recorded of them."""

    def __init__(self, steps: queue.Queue[Any]) -> None:
        self._steps = steps
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        """Called by `generate`: first with the prompt, then with one token per row."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        observed = newest_observation()
        missing = [math.nan] * len(value)
        columns = [missing] * len(MEASURED) if observed is None else [values.tolist() for values in observed]
        self._steps.put(list(zip(value.tolist(), *columns, strict=True)))

    def end(self) -> None:
        """Called by `generate` at the end; the thread around it says so by itself."""


class _Stop(StoppingCriteria):
    """Ends a generation that is no longer wanted."""

    def __init__(self, wanted: threading.Event) -> None:
        self.wanted = wanted

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self.wanted.is_set(), device=input_ids.device, dtype=torch.bool)


class Engine:
    """A steered model that answers visitors in turn.

    Args:
        model: The model; nothing else changes its settings meanwhile.
        processor: Its processor.
        max_new_tokens: Longest answer.
    """

    def __init__(self, model: RudderForConditionalGeneration, processor: Any, max_new_tokens: int = 128) -> None:
        self.model, self.processor, self.max_new_tokens = model, processor, max_new_tokens
        self._turn = threading.Lock()  # one generation at a time: memory is for one
        self.own = {name: getattr(model.config, name) for name in SETTINGS}  # the model's own settings

    def stream(self, image: Image, view: View, stop: threading.Event) -> Iterator[Frame]:
        """Both answers while they are written: row 0 as without RUDDER, row 1 as the view says, in one batch.

        The event ends the generation, before or after its turn has come; so does a reader that leaves early.
        """
        steps: queue.Queue[Any] = queue.Queue()
        worker = threading.Thread(target=self._generate, args=(image, view, steps, stop), daemon=True)
        worker.start()
        ends = end_ids(self.model.handle.backbone.model)
        vanilla, steered = (GrowingAnswer(self.processor.tokenizer, ends, MEASURED) for _ in range(2))
        try:
            done = False
            while not done:
                # Everything that has come meanwhile: a slow reader skips frames and delays no other.
                for step in _available(steps):
                    if isinstance(step, BaseException):
                        raise step
                    done = done or step is None
                    for answer, values in zip((vanilla, steered), step or (), strict=False):
                        answer.add(*values)
                yield Frame(vanilla.traced(), steered.traced(), done, done and stop.is_set())
        finally:
            stop.set()
            worker.join()

    def _generate(self, image: Image, view: View, steps: queue.Queue[Any], stop: threading.Event) -> None:
        """In a thread of its own: generate, and hand over tokens, then None, or what went wrong."""
        both = {name: [0.0, view.settings[name]] for name in ("alpha_max", "contrast")}
        try:
            with self._turn:
                if not stop.is_set():
                    self.model.generate(
                        **encode(self.model, self.processor, [image] * 2, [view.prompt] * 2),
                        max_new_tokens=self.max_new_tokens,
                        do_sample=False,
                        num_beams=1,
                        streamer=_Streamer(steps),
                        stopping_criteria=StoppingCriteriaList([_Stop(stop)]),
                        rudder={**view.settings, **both},
                        output_rudder=True,
                        return_dict_in_generate=True,
                    )
            steps.put(None)
        except BaseException as error:
            steps.put(error)


def _available(steps: queue.Queue[Any]) -> list[Any]:
    """Waits for one item and takes what has come until then."""
    items = [steps.get()]
    while not steps.empty():  # no other thread takes items
        items.append(steps.get())
    return items


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
