"""The Gradio page: controls, events, and the server around it. The only file that needs gradio."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from PIL.Image import Image
from starlette.middleware import Middleware

from ..metrics.highlight import absent
from . import pictures
from .css import ONLY_THIS_SERVER, STYLE, head, notes
from .engine import Engine, Frame
from .tokens import (
    COLOURS,
    caption,
    legend,
    panel,
    scale,
    verdict,
)
from .view import (
    LONGEST_PROMPT,
    MODES,
    View,
    config_json,
    default_view,
    keep_links,
    read_query,
    strength_note,
    view_of,
)

EXAMPLE = 4
WAITING_VISITORS = 16  # who wait for their turn at the model; others wait in Gradio's queue
LARGEST_PICTURE = "25mb"
VANILLA, STEERED = "Vanilla: the model as it is", "With RUDDER"


@dataclass(frozen=True)
class Shown:
    """What a visitor sees, to paint it again in other colours."""

    view: View
    frame: Frame

    def panels(self) -> tuple[str, str, str]:
        """Both answers and the legend, as HTML."""
        view, frame = self.view, self.frame
        limits = scale((frame.vanilla, frame.steered), view.colour)
        present = pictures.present(view.example)
        painted = []
        for title, tokens in ((VANILLA, frame.vanilla), (STEERED, frame.steered)):
            text = "".join(token.text for token in tokens)
            wrong = None if present is None else absent(text, present)
            body = caption(tokens, view.colour, limits, wrong or ())
            painted.append(panel(title, body, verdict(wrong, frame.done), "Waiting for the model …"))
        return painted[0], painted[1], legend(view.colour, limits)


EMPTY = Frame((), (), False)


def _hint(title: str) -> str:
    """An answer's place while there is no picture."""
    return panel(title, "", "", "Upload or paste a picture, or choose an example.")


class Page:
    """The page of one model.

    Args:
        engine: Runs the model.
        name: How the model is called.
        prompt: The question that the page opens with.
        note: A remark about the model.
        private: Whether only the owner of the machine sees the page: settings are then saved with the model's folder.
        eager: Whether an example is answered as soon as the page opens, also without a link that asks for it.
    """

    def __init__(
        self, engine: Engine, name: str, prompt: str, note: str | None = None, private: bool = True, eager: bool = True
    ) -> None:
        self.engine, self.name, self.note, self.private, self.eager = engine, name, note, private, eager
        config = engine.model.config
        self.default = default_view(engine.limits, config.mode, prompt, min(EXAMPLE, pictures.count()))

    def build(self, folder: Path) -> gr.Blocks:
        """The page; `folder` is where the example pictures are written."""
        files = pictures.write(folder)
        with gr.Blocks(title="RUDDER", analytics_enabled=False, delete_cache=(600, 3600)) as page:
            gr.HTML(head(self.name, self.note))
            shown, linked = gr.State(None), gr.State(None)
            picture = gr.Image(
                type="pil", format="png", image_mode="RGB", sources=["upload", "clipboard"], label="Picture",
                height=320, buttons=[], elem_id="picture", render=False,
            )  # fmt: skip
            gr.Examples(
                [[str(file)] for file in files], picture, examples_per_page=len(files), cache_examples=False,
                label="Examples: it is known what is in them", elem_id="examples",
            )  # fmt: skip
            with gr.Row():
                with gr.Column(scale=2, min_width=300):
                    picture.render()
                    prompt = gr.Textbox(
                        self.default.prompt, label="Question", lines=1, max_length=LONGEST_PROMPT, elem_id="prompt"
                    )
                    with gr.Row():
                        describe = gr.Button("Describe", variant="primary", elem_id="describe", min_width=100)
                        stop = gr.Button("Stop", elem_id="stop", min_width=100)
                with gr.Column(scale=5, min_width=300):
                    with gr.Row():
                        vanilla = gr.HTML(_hint(VANILLA), elem_id="vanilla", min_width=260)
                        steered = gr.HTML(_hint(STEERED), elem_id="steered", min_width=260)
                    scales = gr.HTML(legend(self.default.colour, (0.0, 1.0)), elem_id="legend")
                    mode, layer, alpha_max, k, colour = self._controls()
                    remarks = gr.HTML(elem_id="notes")
                    keep = gr.HTML(elem_id="keep")
            inputs = [picture, prompt, mode, layer, alpha_max, k, colour]
            painted = [vanilla, steered, scales, keep, shown]
            moved = [mode.input, layer.release, alpha_max.release, k.release]
            run = gr.on(
                [picture.change, describe.click, prompt.submit, *moved],
                self.answer, [linked, *inputs], [*painted, linked, alpha_max, k, remarks], api_name="describe",
                show_progress="hidden", trigger_mode="always_last", concurrency_limit=WAITING_VISITORS,
            )  # fmt: skip
            quick: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
            # A colour that is chosen while an answer is written is taken up when it ends.
            run.then(self.repaint, [shown, colour], painted, **quick)
            colour.input(self.repaint, [shown, colour], painted, **quick)
            stop.click(None, cancels=[run], api_visibility="private")
            page.load(self.open, None, [linked, *inputs, remarks, keep], **quick)
        page.queue(max_size=64)
        return page

    def _controls(self) -> tuple[Any, ...]:
        """Mode, layer, alpha_max, k and colour."""
        view, limits = self.default, self.engine.limits
        with gr.Row():
            mode = gr.Radio(
                list(MODES), value=view.mode, label="mode", info="gated (beta) or constant (add)", elem_id="mode"
            )
            colour = gr.Radio(
                list(COLOURS), value=view.colour, label="colour", info="what tokens are coloured by", elem_id="colour"
            )
        with gr.Row():
            layer = gr.Slider(
                0, limits.last_layer, view.layer, step=1,
                label="layer", info="where CARD is read and added", elem_id="layer", min_width=200,
            )  # fmt: skip
            alpha_max = gr.Slider(
                0, limits.largest_alpha(view.layer), view.alpha_max, step=limits.alpha_step(view.layer),
                label="alpha_max", info="strength of the push", elem_id="alpha_max", min_width=200,
            )  # fmt: skip
            k = gr.Slider(
                0, limits.largest_k, view.k, step=0.1,
                label="k", info="sensitivity of the gate", elem_id="k", min_width=200,
            )  # fmt: skip
        return mode, layer, alpha_max, k, colour

    def answer(self, linked: View | None, picture: Image | None, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Both answers about a picture, while they are written.

        `linked` is the view of a link that was just opened: its picture may arrive before its other controls do.
        """
        if picture is None:
            yield (_hint(VANILLA), _hint(STEERED), gr.skip(), gr.skip(), None, None, gr.skip(), gr.skip(), gr.skip())
            return
        try:
            names = ("prompt", "mode", "layer", "alpha_max", "k", "colour")
            view = linked or view_of(dict(zip(names, values, strict=True)), pictures.recognise(picture))
            if view.layer in self.engine.limits.hidden_norms:
                # The strength was chosen for another layer, whose hidden states may be longer.
                view = replace(view, alpha_max=min(view.alpha_max, self.engine.limits.largest_alpha(view.layer)))
            self.engine.limits.check(view)
        except (ValueError, TypeError) as error:
            raise gr.Error(html.escape(str(error)), title="Not possible", print_exception=False) from error
        sliders = (self._alpha_slider(view), gr.Slider(interactive=view.mode == "beta"))
        # What a link had wrong stays told beside its view.
        remarks = gr.skip() if linked else notes([strength_note(view, self.engine.limits)])
        yield (*self._painted(Shown(view, EMPTY)), None, *sliders, remarks)
        for frame in self.engine.stream(picture, view):
            shown = Shown(view, frame)
            yield (*shown.panels(), gr.skip(), shown, None, gr.skip(), gr.skip(), gr.skip())

    def _alpha_slider(self, view: View) -> Any:
        limits = self.engine.limits
        return gr.Slider(
            maximum=limits.largest_alpha(view.layer), step=limits.alpha_step(view.layer), value=view.alpha_max
        )

    def _painted(self, shown: Shown) -> tuple[Any, ...]:
        """Answers, legend, links, and what they were made of."""
        config = config_json(shown.view, self.engine.model.config, keep_folder=self.private)
        return (*shown.panels(), keep_links(shown.view, config), shown)

    def repaint(self, shown: Shown | None, colour: str) -> tuple[Any, ...]:
        """The answers that are there, in other colours."""
        if shown is None or colour not in COLOURS:
            return tuple(gr.skip() for _ in range(5))
        return self._painted(replace(shown, view=replace(shown.view, colour=colour)))

    def open(self, request: gr.Request) -> tuple[Any, ...]:
        """The controls as a link says."""
        view, problems = read_query(dict(request.query_params), self.default, self.engine.limits)
        asked = "example" in request.query_params
        picture = pictures.example(view.example) if view.example and (asked or self.eager) else None
        limits = self.engine.limits
        config = config_json(view, self.engine.model.config, keep_folder=self.private)
        return (
            None if picture is None else view, picture, view.prompt, view.mode, view.layer, self._alpha_slider(view),
            gr.Slider(value=view.k, interactive=view.mode == "beta"), view.colour,
            notes([*problems, strength_note(view, limits)]), keep_links(view, config),
        )  # fmt: skip


class _OnlyThisServer:
    """Adds the header by which browsers refuse to ask anybody else."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (b"content-security-policy", ONLY_THIS_SERVER.encode())
                message = {**message, "headers": [*message.get("headers", []), header]}
            await send(message)

        await self.app(scope, receive, with_header if scope["type"] == "http" else send)


def launch(blocks: gr.Blocks, *, address: str | None, port: int | None, open_browser: bool = False) -> str:
    """Start the server in the background and return its address.

    Args:
        blocks: The page.
        address: Where to listen; None leaves it to the environment, as a Space needs.
        port: Where to listen.
        open_browser: Whether to open the page.
    """
    theme = gr.themes.Base(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    ).set(block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300")
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
        max_file_size=LARGEST_PICTURE,
        theme=theme,
        css=STYLE,
        app_kwargs={"middleware": [Middleware(_OnlyThisServer)]},
    )
    return str(url)
