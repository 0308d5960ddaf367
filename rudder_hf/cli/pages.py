"""`rudder analyze` and `rudder demo`: what RUDDER does inside a model as a report, and a page to try it."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import Annotated

import typer

from . import common

EXAMPLES = {
    "analyze": (
        "rudder analyze --out analysis",
        "rudder analyze --split examples --out analysis",
        "rudder analyze --model FOLDER --data photos --out analysis",
        "rudder analyze --model ID --data coco --split val2014 --out analysis",
    ),
    "demo": (
        "rudder demo",
        "rudder demo --port 0 --no-open",
        "rudder demo --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
        "rudder demo --model FOLDER --set layer=20 --set alpha_max=5",
    ),
}


def analyze_command(
    out: common.OutOption,
    model: common.ModelOption = None,
    data: common.DataOption = None,
    images: common.ImagesOption = None,
    split: common.SplitOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of images, drawn with the seed.")] = 100,
    settings: common.SettingsOption = None,
    prompt: common.PromptOption = None,
    max_new_tokens: common.MaxNewTokensOption = None,
    batch_size: common.BatchSizeOption = 8,
    seed: common.SeedOption = 0,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
) -> None:
    """Draw what RUDDER does inside a model: token by token, the gate, the layers, and CARD.

    Writes report.html, which stands alone, numbers.json and figures/ (PNG and SVG). Without annotations the report
    does not say which objects are in the images. If it is interrupted, repeat the command.
    """
    given = dict(locals())
    with common.refusing_bad_input():
        from ..analyze import Study, analyze, check_analysis_folder, find_images

        common.require_extra("plots", "matplotlib")
        check_analysis_folder(out)

        from ..evaluate.tasks import DataOptions
        from ..runtime.models import load_model

        task = find_images(DataOptions(data, images=images, split=split, prompt=prompt, seed=seed, limit=limit))
        wanted = common.given_settings(given)
        loaded = load_model(model, dtype, common.choose_device(device))
        study = Study(loaded, task, loaded.config_with(wanted), max_new_tokens, batch_size, common.command_line())

    from ..runtime.report import ProgressBar

    with common.reporting_failure(), ProgressBar() as bar:
        numbers = analyze(out, study, bar)
    for line in numbers["summary"]:
        typer.echo(line)
    for note in numbers["notes"]:
        typer.echo(f"Left out: {note}")
    common.next_steps(f"open {out / 'report.html'} (figures/ and numbers.json are beside it)")


def demo_command(
    model: common.ModelOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 7860,
    settings: common.SettingsOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
) -> None:
    """Open a page on this machine: an image in, the model's answer without and with RUDDER side by side.

    The page is served to this machine only and loads nothing from elsewhere. Ctrl-C ends it.
    """
    given = dict(locals())
    with common.refusing_bad_input():
        from ..demo.serve import check_port, serving

        common.require_extra("demo", "gradio")
        check_port(port)
        wanted = common.given_settings(given)
    with common.reporting_failure():
        with common.refusing_bad_input():
            from ..runtime.models import load_steered

            steered, processor = load_steered(model, wanted, common.choose_device(device), dtype)
        # A terminated server removes its visitors' images, too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), serving(steered, processor, model, port, max_new_tokens, not no_open) as url:
            typer.echo(f"The page is at {url} (for this machine only; Ctrl-C ends it).")
            threading.Event().wait()
