"""The Gradio page: controls, events, and the server around it. The only file that needs gradio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from ..analyze.examples import answer_examples
from ..hub.images import read_image
from ..scenes.embedded import examples, recognise_example, write_examples
from .serve import Engine
from .view import (
    CSS,
    LEGEND,
    LONGEST_PROMPT,
    ONLY_THIS_SERVER,
    ORIGINAL,
    PRESET_NAMES,
    SETTINGS,
    Frame,
    View,
    head,
    note,
    paint,
    panel,
    preset,
    preset_of,
    slider_ranges,
    status,
    steered_title,
)

WAITING_VISITORS = 16  # who wait for their turn at the model; others wait in Gradio's queue
LARGEST_IMAGE = "25mb"
HINT = "Upload or paste an image, or choose an example."
UNREADABLE = "This file is damaged or not an image: choose another, as PNG, JPEG or WebP."
ONLY_SCENES = "This model was trained on synthetic scenes only. It cannot describe photographs or other images."

Updates = dict[Any, Any]
"""New values of the page's components."""


class Page:
    """The page of one model.

    Args:
        engine: Runs the model.
        name: How the page calls the model.
        prompt: The question that the page opens with.
        note: A remark about the model.
        knows_scenes: Whether the model was trained on the scenes and nothing else: it opens with an example.
        folder: Where the example images are written.
    """

    def __init__(self, engine: Engine, name: str, prompt: str, note: str, knows_scenes: bool, folder: Path) -> None:
        self.engine, self.knows_scenes = engine, knows_scenes
        self.default = View(None, prompt, engine.own)
        self.running: dict[str | None, threading.Event] = {}  # by visitor: what stops the answer
        self.files = write_examples(folder)
        self.first: int | None = None  # example that the page opens with
        summary = ""
        if knows_scenes:
            found = answer_examples(engine.model, engine.processor, prompt, engine.max_new_tokens)
            differ = [one != other for one, other in zip(found.vanilla, found.steered, strict=True)]
            helped = [before > after == 0 for before, after in found.absent]
            self.first = min(range(len(self.files)), key=lambda n: (not helped[n], not differ[n], n))
            summary = f"{found.summary()} This page opens with the first example where " + (
                "vanilla names absent objects and RUDDER does not." if helped[self.first] else "the answers differ."
            )
        with gr.Blocks(title="RUDDER", analytics_enabled=False, delete_cache=(600, 3600)) as self.blocks:
            gr.HTML(head(name, note, summary))
            self._components()
            self._events()
        self.blocks.queue(max_size=64)

    def _components(self) -> None:
        view = self.default
        with gr.Row(elem_id="page"):
            with gr.Column(scale=2, min_width=300):
                self.image = gr.Image(
                    format="png", sources=["upload", "clipboard"], label="Image", height=320, buttons=[],
                    elem_id="image",
                )  # fmt: skip
                self.prompt = gr.Textbox(
                    view.prompt, label="Question", lines=1, max_length=LONGEST_PROMPT, elem_id="prompt"
                )
                with gr.Row():
                    self.describe = gr.Button("Describe", variant="primary", elem_id="describe", min_width=100)
                    self.stop = gr.Button("Stop", elem_id="stop", min_width=100)
                self.preset = gr.Radio(list(PRESET_NAMES), value="calibrated", label="RUDDER", elem_id="preset")
                with gr.Accordion("Examples, whose objects are known", elem_id="more"), gr.Row(elem_id="examples"):
                    self.examples = [
                        gr.Button(f"{number} {scene.place}", icon=str(file), size="sm", min_width=60)
                        for number, (scene, file) in enumerate(zip(examples(), self.files, strict=False), start=1)
                    ]
            with gr.Column(scale=5, min_width=300):
                self.status = gr.HTML(status(HINT), elem_id="status")
                self.note = gr.HTML(elem_id="note")
                with gr.Row(elem_id="answers"):
                    self.answers = [
                        gr.HTML(panel(heading), elem_id=name)
                        for heading, name in ((ORIGINAL, "vanilla"), (steered_title(view.settings), "steered"))
                    ]
                gr.HTML(LEGEND, elem_id="legend")
                with gr.Accordion("Advanced", open=False, elem_id="advanced"):
                    ranges = slider_ranges(view.settings)
                    with gr.Row(elem_id="settings"):
                        self.settings = [
                            gr.Slider(*ranges[name], label=name, info=info, elem_id=name)
                            for name, info in SETTINGS.items()
                        ]

    def _events(self) -> None:
        answering: dict[str, Any] = {
            "fn": self.answer,
            "inputs": [self.image, self.prompt, *self.settings],
            "outputs": [*self.answers, self.status, self.preset, self.note, self.image],
            # Images are read here, so that what cannot be read is told in a sentence of ours.
            "preprocess": False, "show_progress": "hidden", "trigger_mode": "always_last",
            "concurrency_limit": WAITING_VISITORS, "concurrency_id": "answer",
        }  # fmt: skip
        quick: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
        gr.on(
            [self.image.change, self.describe.click, self.prompt.submit, *(each.release for each in self.settings)],
            api_name="describe",
            **answering,
        )
        chosen = self.preset.input(
            lambda name: list(preset(name, self.engine.own).values()), self.preset, self.settings, **quick
        )
        chosen.then(api_name=False, **answering)
        self.stop.click(self.halt, **quick)
        self.image.clear(lambda: self._emptied(HINT), None, [*self.answers, self.status, self.note], **quick)
        for button, file in zip(self.examples, self.files, strict=True):
            button.click(lambda file=str(file): file, None, self.image, **quick)
        # The text of a button is its whole name: what is not seen is not told twice.
        self.blocks.load(None, js="() => document.querySelectorAll('#examples img').forEach(img => { img.alt = '' })")
        if self.first is not None:
            self.blocks.load(lambda: str(self.files[self.first or 0]), None, self.image, **quick)

    def answer(self, request: gr.Request, file: Any, prompt: str, *values: Any) -> Iterator[Updates]:
        """Write both answers about an image, and paint them meanwhile."""
        if file is None:  # taken away by the visitor, or because it could not be read: what was said stays
            yield {self.status: gr.skip()}
            return
        try:
            image = read_image(Path(file["path"] or ""))
        except ValueError:
            yield self._emptied(UNREADABLE) | {self.image: None}
            return
        try:
            view = View.from_controls(recognise_example(image), prompt, values)
            unknown = self.knows_scenes and view.example is None
            beside = {self.preset: preset_of(view, self.engine.own), self.note: note(ONLY_SCENES if unknown else "")}
            yield self._painted(view, Frame()) | beside
            stop = self.running[request.session_hash] = threading.Event()
            for frame in self.engine.stream(image, view, stop):
                yield self._painted(view, frame)
        except (ValueError, TypeError) as error:
            yield self._emptied(str(error))
        finally:
            self.running.pop(request.session_hash, None)

    def _emptied(self, why: str) -> Updates:
        """No answers, and a sentence in their place."""
        empty = dict(zip(self.answers, (panel(ORIGINAL), panel("With RUDDER")), strict=True))
        return {**empty, self.note: "", self.status: status(why)}

    def _painted(self, view: View, frame: Frame) -> Updates:
        panels, result = paint(view, frame)
        return {**dict(zip(self.answers, panels, strict=True)), self.status: result}

    def halt(self, request: gr.Request) -> None:
        """End the visitor's answer, which then says so itself."""
        if stop := self.running.get(request.session_hash):
            stop.set()


class _OnlyThisServer:
    """Keeps the page between this server and this machine's browser.

    It adds the header by which browsers refuse to ask anybody else. It refuses
    requests under another host name, by which a site could make a browser take this server for its own (DNS
    rebinding), and posts from other pages.

    Args:
        app: The server.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = [f"//{headers.get('host', '')}"]
        if scope.get("method") not in ("GET", "HEAD") and "origin" in headers:
            asked.append(headers["origin"])
        if not all(urlsplit(url).hostname in ("127.0.0.1", "localhost") for url in asked):
            refusal = PlainTextResponse("This page is for this machine only: open it at 127.0.0.1.", status_code=403)
            await refusal(scope, receive, send)
            return

        async def with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (b"content-security-policy", ONLY_THIS_SERVER.encode())
                message = {**message, "headers": [*message.get("headers", []), header]}
            await send(message)

        await self.app(scope, receive, with_header)


def launch(blocks: gr.Blocks, address: str, port: int, open_browser: bool) -> str:
    """Start the server in the background and return its address.

    Args:
        blocks: The page.
        address: Where to listen.
        port: Where to listen.
        open_browser: Whether to open the page.
    """
    # Where Gradio's colours are too faint.
    theme = gr.themes.Base(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    ).set(
        block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300",
        button_primary_background_fill="*primary_600", checkbox_border_color_dark="*neutral_400",
    )  # fmt: skip
    _, url, _ = blocks.launch(
        server_name=address,
        server_port=port,
        inbrowser=open_browser,
        # Said here, so that no environment variable turns them on.
        share=False,
        mcp_server=False,
        ssr_mode=False,
        enable_monitoring=False,
        show_error=True,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
        max_file_size=LARGEST_IMAGE,
        theme=theme,
        css=CSS,
        app_kwargs={"middleware": [Middleware(_OnlyThisServer)]},
    )
    return str(url)
