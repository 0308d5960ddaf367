"""The token view as a figure: each token on a shade of what was measured at it, absent objects framed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .style import DARK, figure

COLUMNS = 46  # characters in a line
_CHARACTER, _LINE = 0.0752, 0.205  # inches, of the monospaced font at its size
_SIZE = 9.0
ABSENT = "✗"
NAMES = {"vanilla": "vanilla", "steered": "RUDDER"}
MEASURES = {"similarity": "CARD similarity (cosine)", "gate": "gate (share of alpha_max)"}


def shade(value: float, scale: list[float]) -> tuple[float, float, float]:
    """From white to a blue on which black text is readable; lightness falls all the way, so that greys tell it too."""
    low, high = scale
    part = min(max((value - low) / (high - low), 0.0), 1.0) if value == value else 0.0
    return tuple(1 - part * (1 - end) for end in (0.32, 0.60, 0.87))  # type: ignore[return-value]


def _groups(tokens: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Tokens that no line may part: those of one word."""
    group: list[dict[str, Any]] = []
    for token in tokens:
        if group and (token["text"][:1].isspace() or group[-1]["text"][-1:].isspace()):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def lay_out(tokens: list[dict[str, Any]], columns: int = COLUMNS) -> list[tuple[int, int, str, dict[str, Any]]]:
    """Line, column and text of each token; a mark stands behind an absent object."""
    placed = []
    line = column = 0
    for group in _groups(tokens):
        texts = [" ".join(token["text"].split()) for token in group]
        texts = [
            text + (ABSENT if token["absent"] and token["last"] else "")
            for text, token in zip(texts, group, strict=True)
        ]
        length = sum(map(len, texts))
        gap = 1 if column and group[0]["text"][:1].isspace() else 0
        if column and column + gap + length > columns:
            line, column, gap = line + 1, 0, 0
        column += gap
        for text, token in zip(texts, group, strict=True):
            if text:
                placed.append((line, column, text, token))
            column += len(text)
    return placed


def draw_tokens(numbers: dict[str, Any], picture: Any) -> Any:
    """Vanilla beside RUDDER, coloured by similarity above and by gate below, with the picture on the left.

    Args:
        numbers: The section "tokens".
        picture: The picture, as PIL has it.
    """
    entry = numbers["figure"]
    placed = {name: lay_out(entry[name]["tokens"]) for name in NAMES}
    lines = max((place[0] for rows in placed.values() for place in rows), default=0) + 1
    width, height = 2 * (COLUMNS + 3) * _CHARACTER, 2 * (lines * _LINE + 0.75) + 0.5
    made, axes = figure(width + 2.5, max(height, 3.0), 2, 3, width_ratios=[2.3, width / 2, width / 2])
    picture_axes, below = axes[0], axes[3]
    picture_axes.imshow(picture)
    picture_axes.set_axis_off()
    picture_axes.set_title(_wrapped(f"picture {entry['id']}", 34), size=8)
    below.set_axis_off()
    below.text(0, 1, _legend(entry), va="top", size=8, transform=below.transAxes, linespacing=1.5)
    for row, (measure, label) in enumerate(MEASURES.items()):
        for column, (name, title) in enumerate(NAMES.items()):
            axis = axes[3 * row + 1 + column]
            _block(axis, placed[name], lines, measure, numbers["scale"][measure])
            would = ", as it would be" if measure == "gate" and name == "vanilla" else ""
            axis.set_title(f"{title}: {label}{would}", size=9)
            if column == 1:
                _bar(axis, numbers["scale"][measure])
    return made


def _legend(entry: dict[str, Any]) -> str:
    parts = []
    if entry["present"] is not None:
        parts.append(_wrapped("in the picture: " + ", ".join(entry["present"]), 34))
        parts.append(f"framed with {ABSENT}: an object that\nis not in the picture\nunderlined: an object that is")
    else:
        parts.append("what is in the picture\nis not known")
    return "\n\n".join(parts)


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _block(axes: Any, placed: list[Any], lines: int, measure: str, scale: list[float]) -> None:
    from matplotlib.patches import Rectangle

    axes.set_xlim(0, COLUMNS + 2)
    axes.set_ylim(lines + 0.9, -0.1)
    axes.set_axis_off()
    for line, column, text, token in placed:
        absent = bool(token["absent"])
        axes.add_patch(
            Rectangle(
                (column, line + 0.06), len(text), 0.88, facecolor=shade(token[measure], scale),
                edgecolor="black" if absent else "none", linewidth=1.3 if absent else 0, zorder=2 if absent else 1,
            )
        )  # fmt: skip
        axes.text(
            column + len(text) / 2, line + 0.5, text, ha="center", va="center", family="monospace", size=_SIZE,
            weight="bold" if absent else "normal", zorder=3,
        )  # fmt: skip
        if token["absent"] is False:
            axes.plot([column, column + len(text)], [line + 0.9] * 2, color=DARK, linewidth=1.2, zorder=3)


def _bar(axes: Any, scale: list[float]) -> None:
    """The scale of the shades, below the tokens."""
    from matplotlib.patches import Rectangle

    steps, (low, high) = 40, scale
    bottom = axes.get_ylim()[0]
    for step in range(steps):
        value = low + (high - low) * (step + 0.5) / steps
        axes.add_patch(
            Rectangle(
                (COLUMNS - 22 + 14 * step / steps, bottom - 0.6), 14 / steps, 0.5, color=shade(value, scale), lw=0
            )
        )
    axes.text(COLUMNS - 22.5, bottom - 0.35, f"{low:.2f}", ha="right", va="center", size=8)
    axes.text(COLUMNS - 7.5, bottom - 0.35, f"{high:.2f}", ha="left", va="center", size=8)
