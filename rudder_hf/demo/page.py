"""The Gradio page: controls, events, and the server around it. The only file that needs gradio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from ..analyze.tokens import TracedAnswer, token_view, tokens_html
from ..hub.images import read_image
from ..scenes.embedded import example_image, examples, recognise_example, write_examples
from .engine import Engine, Frame
from .view import (
    CHOICES,
    COLOURS,
    CSS,
    LONGEST_PROMPT,
    ONLY_THIS_SERVER,
    ROWS,
    View,
    colour_scale,
    config_json,
    head,
    keep_links,
    legend,
    notes,
    panel,
    read_query,
    status,
    verdict,
)

EXAMPLE = 4
WAITING_VISITORS = 16  # who wait for their turn at the model; others wait in Gradio's queue
LARGEST_IMAGE = "25mb"
TITLES = {"vanilla": "Vanilla: the model as it is", "steered": "With RUDDER"}
HINT = "Upload or paste an image, or choose an example."
UNREADABLE = "This file is damaged or not an image: choose another, as PNG, JPEG or WebP."

Updates = dict[Any, Any]
"""New values of the page's components."""


@dataclass(frozen=True)
class Shown:
    """What a visitor sees, to paint it again in other colours."""

    view: View
    frame: Frame = field(default_factory=Frame)

    def painted(self) -> tuple[dict[str, str], str]:
        """Both answers and the legend, as HTML."""
        colour, number, stopped = self.view.colour, self.view.example, self.frame.stopped
        present = None if number is None else frozenset(examples()[number - 1].names)
        answers: dict[str, TracedAnswer] = {side: getattr(self.frame, side) for side in TITLES}
        scale = colour_scale(list(answers.values()), colour)
        panels = {}
        for side, answer in answers.items():
            tokens = token_view(answer, present)
            body = tokens_html(tokens["tokens"], colour, scale) or ("" if stopped else "Waiting for the model …")
            panels[side] = panel(TITLES[side], body, verdict(tokens["absent"], self.frame.done, stopped))
        return panels, legend(colour, scale)


class Page:
    """The page of one model.

    Args:
        engine: Runs the model.
        name: How the page calls the model.
        prompt: The question that the page opens with.
        note: A remark about the model.
        private: Whether only the owner of the machine sees the page: settings are then saved with the model's folder.
        eager: Whether an example is answered as soon as the page opens, also without a link that asks for it.
        folder: Where the example images are written.
    """

    def __init__(
        self, engine: Engine, name: str, prompt: str, note: str, private: bool, eager: bool, folder: Path
    ) -> None:
        self.engine, self.limits, self.private, self.eager = engine, engine.limits, private, eager
        self.default = View(EXAMPLE, prompt, engine.limits.own)
        self.running: dict[str | None, threading.Event] = {}  # by visitor: what stops the answer
        with gr.Blocks(title="RUDDER", analytics_enabled=False, delete_cache=(600, 3600)) as self.blocks:
            gr.HTML(head(name, note))
            self._components(write_examples(folder))
            self._events()
        self.blocks.queue(max_size=64)

    def _components(self, files: list[Path]) -> None:
        view = self.default
        # What is shown, and the view of a link that was just opened.
        self.shown, self.linked = gr.State(None), gr.State(None)
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
                gr.Examples(
                    [[str(file)] for file in files], self.image, examples_per_page=len(files), cache_examples=False,
                    label="Examples, whose objects are known", elem_id="examples",
                )  # fmt: skip
            with gr.Column(scale=5, min_width=300):
                self.status = gr.HTML(status(HINT), elem_id="status")
                with gr.Row(elem_id="answers"):
                    self.answers = {side: gr.HTML(panel(title), elem_id=side) for side, title in TITLES.items()}
                with gr.Row(elem_id="colours"):
                    self.legend = gr.HTML(legend(view.colour, (0.0, 1.0)), elem_id="legend")
                    self.colour = _control("colour", view.colour, "what words are coloured by", None)
                ranges, self.settings = self.limits.ranges(view.settings["layer"]), dict[str, Any]()
                for row in ROWS:
                    with gr.Row(elem_classes="settings"):
                        for name, info in row.items():
                            self.settings[name] = _control(name, view.settings[name], info, ranges.get(name))
                self.notes = gr.HTML(elem_id="notes")
                self.keep = gr.HTML(elem_id="keep")

    def _events(self) -> None:
        controls = [self.prompt, self.colour, *self.settings.values()]
        painted = [*self.answers.values(), self.legend, self.keep, self.shown]
        settings = self.settings
        moved = [getattr(each, "release" if isinstance(each, gr.Slider) else "input") for each in settings.values()]
        run = gr.on(
            [self.image.change, self.describe.click, self.prompt.submit, *moved],
            self.answer, [self.linked, self.shown, self.image, *controls],
            [*painted, self.linked, settings["alpha_max"], settings["k"], self.notes, self.status, self.image],
            # Images are read here, so that what cannot be read is told in a sentence of ours.
            preprocess=False, api_name="describe", show_progress="hidden", trigger_mode="always_last",
            concurrency_limit=WAITING_VISITORS,
        )  # fmt: skip
        quick: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
        # A colour that is chosen while an answer is written is taken up when it ends.
        run.then(self.repaint, [self.shown, self.colour], painted, **quick)
        self.colour.input(self.repaint, [self.shown, self.colour], painted, **quick)
        self.stop.click(self.halt, **quick)
        self.blocks.load(self.open, None, [self.linked, self.image, *controls, self.notes, self.keep], **quick)

    def answer(
        self,
        request: gr.Request,
        linked: View | None,
        shown: Shown | None,
        file: Any,
        prompt: str,
        colour: str,
        *values: Any,
    ) -> Iterator[Updates]:
        """Both answers about an image, while they are written.

        `linked` is the view of a link that was just opened: its image may arrive before its other controls do.
        """
        if file is None:
            # A file that could not be read was taken away with its answer: what was said about it stays.
            yield {self.linked: None} if shown is None else self._emptied(HINT)
            return
        try:
            image = read_image(Path(file["path"] or ""))
        except ValueError:
            yield self._emptied(UNREADABLE) | {self.image: None}
            return
        try:
            view = linked or View.from_controls(recognise_example(image), prompt, colour, values)
            view = self.limits.fitted(view)
            self.limits.check(view)
            # What was wrong in a link stays beside its view.
            remarks = {} if linked else {self.notes: notes([self.limits.strength_note(view)])}
            yield (
                self._painted(Shown(view))
                | self._sliders(view)
                | remarks
                | {self.keep: self._links(view), self.linked: None, self.status: ""}
            )
            stop = self.running[request.session_hash] = threading.Event()
            for frame in self.engine.stream(image, view, stop):
                yield self._painted(Shown(view, frame))
        except (ValueError, TypeError) as error:
            yield self._emptied(str(error))
        finally:
            self.running.pop(request.session_hash, None)

    def _emptied(self, why: str) -> Updates:
        """No answers, and a sentence in their place."""
        empty = {self.answers[side]: panel(title) for side, title in TITLES.items()}
        return {**empty, self.shown: None, self.linked: None, self.status: status(why)}

    def halt(self, request: gr.Request) -> None:
        """End the visitor's answer, which then says so itself."""
        if stop := self.running.get(request.session_hash):
            stop.set()

    def _painted(self, shown: Shown) -> Updates:
        panels, scale = shown.painted()
        return {
            **{self.answers[side]: panel for side, panel in panels.items()},
            self.legend: scale,
            self.shown: shown,
        }

    def _links(self, view: View) -> str:
        return keep_links(view, config_json(view, self.engine.model.config, keep_folder=self.private))

    def _sliders(self, view: View) -> Updates:
        """Strength and sensitivity as the layer and the mode of a view allow."""
        settings = view.settings
        _, most, step = self.limits.ranges(settings["layer"])["alpha_max"]
        return {
            self.settings["alpha_max"]: gr.Slider(maximum=most, step=step, value=settings["alpha_max"]),
            self.settings["k"]: gr.Slider(value=settings["k"], interactive=settings["mode"] == "beta"),
        }

    def repaint(self, shown: Shown | None, colour: str) -> Updates:
        """The answers that are there, in other colours."""
        if shown is None or colour not in COLOURS:
            return {self.shown: gr.skip()}
        view = replace(shown.view, colour=colour)
        return self._painted(replace(shown, view=view)) | {self.keep: self._links(view)}

    def open(self, request: gr.Request) -> Updates:
        """The controls as a link says."""
        view, problems = read_query(dict(request.query_params), self.default, self.limits)
        asked = "example" in request.query_params
        image = example_image(view.example) if view.example and (asked or self.eager) else None
        return {
            self.linked: None if image is None else view,
            self.image: image,
            self.prompt: view.prompt,
            self.colour: view.colour,
            **{self.settings[name]: value for name, value in view.settings.items()},
            **self._sliders(view),
            self.notes: notes([*problems, self.limits.strength_note(view)]),
            self.keep: self._links(view),
        }


def _control(name: str, value: Any, info: str, ends: tuple[float, float, float] | None) -> Any:
    """A slider for what has ends, a box to tick for what is on or off, a choice for the rest."""
    common = {"value": value, "label": name, "info": info, "elem_id": name}
    if ends is not None:
        return gr.Slider(ends[0], ends[1], step=ends[2], **common)
    if isinstance(value, bool):
        return gr.Checkbox(**common)
    return gr.Radio(list(CHOICES[name]), **common)


class _OnlyThisServer:
    """Keeps the page between this server and this machine's browser.

    It adds the header by which browsers refuse to ask anybody else. Where only this machine may ask, it refuses
    requests under another host name, by which a site could make a browser take this server for its own (DNS
    rebinding), and posts from other pages.

    Args:
        app: The server.
        local: Whether only this machine may ask.
    """

    def __init__(self, app: Any, local: bool) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = [f"//{headers.get('host', '')}"]
        if scope.get("method") not in ("GET", "HEAD") and "origin" in headers:
            asked.append(headers["origin"])
        if self.local and not all(urlsplit(url).hostname in ("127.0.0.1", "localhost") for url in asked):
            refusal = PlainTextResponse("This page is for this machine only: open it at 127.0.0.1.", status_code=403)
            await refusal(scope, receive, send)
            return

        async def with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (b"content-security-policy", ONLY_THIS_SERVER.encode())
                message = {**message, "headers": [*message.get("headers", []), header]}
            await send(message)

        await self.app(scope, receive, with_header)


def launch(blocks: gr.Blocks, *, address: str | None, port: int | None, open_browser: bool = False) -> str:
    """Start the server in the background and return its address.

    Args:
        blocks: The page.
        address: Where to listen; None leaves it to the environment, as a Space needs.
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
        app_kwargs={"middleware": [Middleware(_OnlyThisServer, local=address is not None)]},
    )
    return str(url)
