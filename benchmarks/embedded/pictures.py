"""Draw the pictures of the README, for a light and for a dark page, and update the output that it shows.

    python -m benchmarks.embedded.pictures

Needs the extra `plots`. `answers-*.png`: the first scene of `rudder generate` with both answers, objects that are not
in the image struck through. `cost-*.png`: CHAIR_S against time per token, for the rows of the README's table
(`tables.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from benchmarks.embedded.tables import readme_rows
from rudder_hf.evaluate.tables import THROUGHPUT
from rudder_hf.metrics.chair import Mention, absent
from rudder_hf.scenes.embedded import examples
from rudder_hf.scenes.images import draw

ROOT = Path(__file__).parent.parent.parent
README, OUT = ROOT / "README.md", ROOT / "docs" / "images"
FONTS = Path(mpl.get_data_path()) / "fonts" / "ttf"
SCALE = 3  # of the scene's own pixels
WIDTH, MARGIN, SCENE, SIZE, LINE = 1660, 36, 500, 32, 46  # pixels; the page shows two of them as one
CAPTION = (
    "Struck through: not in the image. Shown is the first scene where the\n"
    "original model names absent objects and RUDDER does not."
)


@dataclass(frozen=True)
class Theme:
    """Colours of a page."""

    name: str
    page: str
    text: str
    muted: str
    wrong: str
    ours: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#59636e", "#cf222e", "#0969da"),
    Theme("dark", "#0d1117", "#e6edf3", "#9198a1", "#ff7b72", "#58a6ff"),
)


def generate(*options: str) -> str:
    """Return what `rudder generate` prints."""
    command = [sys.executable, "-m", "rudder_hf", "generate", *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def first_answer() -> dict[str, Any]:
    """Return the first scene that `rudder generate` shows: vanilla invents objects there, and RUDDER does not.

    Raises:
        SystemExit: There is no such scene.
    """
    answers: list[dict[str, Any]] = json.loads(generate("--json"))["answers"]
    for answer in answers:
        if answer["absent"]["vanilla"] and not answer["absent"]["steered"]:
            return answer
    raise SystemExit("rudder generate found no scene where vanilla invents objects and RUDDER does not.")


def show_output() -> None:
    """Put what `rudder generate` prints into the README."""
    before, rest = README.read_text().split("```console\n$ rudder generate\n")
    README.write_text(f"{before}```console\n$ rudder generate\n{generate()}```{rest.split('```', 1)[1]}")


def scene_image(title: str) -> Image.Image:
    """Draw the scene of a title such as "scene 2, a beach"."""
    number = int(title.split()[1].rstrip(","))
    return draw(examples()[number - 1], SCALE).resize((SCENE, SCENE), Image.Resampling.LANCZOS)


def write_words(canvas: ImageDraw.ImageDraw, text: str, present: list[str], top: int, theme: Theme) -> int:
    """Write a text beside the scene, objects that are not there struck through; returns where it ends."""
    font = ImageFont.truetype(str(FONTS / "DejaVuSans.ttf"), SIZE)
    wrong = [(min(span.start, _begin(text, span)), span.stop) for span in absent(text, present)]
    left = x = SCENE + 2 * MARGIN
    position, space = 0, canvas.textlength(" ", font)
    for word in text.split():
        position = text.index(word, position)
        width = canvas.textlength(word, font)
        if x + width > WIDTH - MARGIN:
            x, top = left, top + LINE
        # A full stop behind an object is no part of it.
        stops = [stop for start, stop in wrong if start <= position < stop]
        struck = word if not stops else word[: max(stops) - position]
        canvas.text((x, top), struck, theme.wrong if stops else theme.text, font)
        if stops:
            end = x + canvas.textlength(struck, font)
            canvas.line([(x, top + 0.6 * SIZE), (end, top + 0.6 * SIZE)], theme.wrong, 3)
            canvas.text((end, top), word[len(struck) :], theme.text, font)
        x, position = x + width + space, position + len(word)
    return top + LINE


def _begin(text: str, span: Mention) -> int:
    """Where the whole name of an object begins: CHAIR finds a "sports ball" by its second word."""
    return span.stop - len(span.category) if text[: span.stop].endswith(span.category) else span.start


def draw_answers(answer: dict[str, Any], theme: Theme) -> None:
    """Draw a scene and both answers."""
    picture = Image.new("RGB", (WIDTH, SCENE + 2 * MARGIN), theme.page)
    canvas = ImageDraw.Draw(picture)
    picture.paste(scene_image(answer["image"]), (MARGIN, MARGIN))
    bold = ImageFont.truetype(str(FONTS / "DejaVuSans-Bold.ttf"), SIZE)
    small = ImageFont.truetype(str(FONTS / "DejaVuSans.ttf"), SIZE - 6)
    left, top = SCENE + 2 * MARGIN, MARGIN
    for name, title, colour in (("vanilla", "Original model", theme.text), ("steered", "With RUDDER", theme.ours)):
        canvas.text((left, top), title, colour, bold)
        top = write_words(canvas, answer[name], answer["present"], top + LINE + 6, theme) + LINE // 2
    canvas.multiline_text((left, SCENE + MARGIN - 66), CAPTION, theme.muted, small, spacing=8)
    texts = PngInfo()
    for name in ("image", "vanilla", "steered"):
        texts.add_text(name, answer[name])
    picture.quantize(128).save(OUT / f"answers-{theme.name}.png", pnginfo=texts, optimize=True)


def draw_costs(theme: Theme) -> None:
    """Draw CHAIR_S against time per token."""
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "text.color": theme.text}):
        figure = Figure(figsize=(8.3, 3.6), dpi=200, facecolor=theme.page, layout="constrained")
        axes = figure.add_subplot(facecolor=theme.page)
        points = {}
        for row in readme_rows():
            if THROUGHPUT not in row.method.cost:
                continue
            value, time = row.method.metrics["chair_s"], 1 / row.method.cost[THROUGHPUT]
            colour = theme.ours if row.ours else theme.text if row.label == "vanilla" else theme.muted
            axes.errorbar(
                time, value.value, yerr=[[value.value - value.low], [value.high - value.value]], fmt=row.marker,
                color=colour, ecolor=theme.muted, elinewidth=0.8, markersize=8, zorder=3,
            )  # fmt: skip
            points[row.label] = (time, value.value, value.low, colour)
        axes.set_xlabel("time per token, relative to vanilla (left is cheaper)", color=theme.text)
        axes.set_ylabel("CHAIR_S, % (lower is better)", color=theme.text)
        axes.margins(x=0.12, y=0.08)
        axes.tick_params(colors=theme.muted)
        axes.grid(color=theme.muted, alpha=0.25, linewidth=0.5)
        for side, spine in axes.spines.items():
            spine.set(color=theme.muted, visible=side in ("left", "bottom"))
        label_points(figure, axes, points)
        figure.savefig(OUT / f"cost-{theme.name}.png", facecolor=theme.page, metadata={"Software": None})


def label_points(figure: Figure, axes: Any, points: dict[str, tuple[float, float, float, str]]) -> None:
    """Write each label beside its point, where it covers no other label, no point and no interval."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    steps = [0.1 * step for step in range(11)]
    taken = [
        axes.transData.transform((x, low + step * 2 * (y - low))) for x, y, low, _ in points.values() for step in steps
    ]
    boxes: list[Any] = []
    for label, (x, y, _, colour) in points.items():
        found = []
        for across, up in product((10, -10), (-3, 9, -15, 21, -27)):
            place = {"xytext": (across, up), "textcoords": "offset points", "ha": "left" if across > 0 else "right"}
            text = axes.annotate(label, (x, y), color=colour, fontsize=9.5, **place)
            box = text.get_window_extent(canvas.get_renderer()).padded(3)
            covered = sum(box.overlaps(other) for other in boxes) + sum(box.contains(*point) for point in taken)
            outside = not (axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1)
            text.remove()
            found.append((covered + 9 * outside, len(found), place, box))
        _, _, place, box = min(found)
        axes.annotate(label, (x, y), color=colour, fontsize=9.5, **place)
        boxes.append(box)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    OUT.mkdir(exist_ok=True)
    answer = first_answer()
    for theme in THEMES:
        draw_answers(answer, theme)
        if readme_rows():
            draw_costs(theme)
    show_output()
    print(f"Written to {OUT} and {README}")


if __name__ == "__main__":
    main()
