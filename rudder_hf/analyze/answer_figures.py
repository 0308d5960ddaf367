"""Figures about answers: tokens shaded by what was measured at them, and the trace as a detector."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..runtime.figures import BLUE, DARK, GREY, LINES, ORANGE, new_figure
from .detector import SCORES
from .figures import OUTLINE, Figure, brackets, histogram, value_above
from .tokens import MEASURES, SIDES, shade

COLUMNS = 46  # characters in a line
_CHARACTER, _LINE = 0.0752, 0.205  # inches, of the monospaced font at its size
ABSENT = "✗"
_STYLES = dict(zip(SCORES, ((BLUE, "o"), (ORANGE, "s"), (DARK, "^"), (GREY, "D")), strict=True))

Token = dict[str, Any]


def _words(tokens: list[Token]) -> Iterator[list[Token]]:
    """Tokens that no line may part: those of one word."""
    word: list[Token] = []
    for token in tokens:
        if word and (token["text"][:1].isspace() or word[-1]["text"][-1:].isspace()):
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def lay_out(tokens: list[Token], columns: int = COLUMNS) -> list[tuple[int, int, str, Token]]:
    """Line, column and text of each token; a mark stands behind an absent object."""
    placed = []
    line = column = 0
    for word in _words(tokens):
        marks = [ABSENT if token["absent"] and token["last"] else "" for token in word]
        texts = [" ".join(token["text"].split()) + mark for token, mark in zip(word, marks, strict=True)]
        gap = 1 if column and word[0]["text"][:1].isspace() else 0
        if column and column + gap + sum(map(len, texts)) > columns:
            line, column, gap = line + 1, 0, 0
        column += gap
        for text, token in zip(texts, word, strict=True):
            if text:
                placed.append((line, column, text, token))
            column += len(text)
    return placed


def tokens(numbers: dict[str, Any], image: Any) -> Figure:
    """Vanilla beside RUDDER, shaded by similarity above and by gate below, with the image on the left.

    Args:
        numbers: The part "tokens".
        image: The image of the figure, as PIL has it.
    """
    shows = (
        "Each token on a shade of what RUDDER measured at the hidden state that wrote it, in the unsteered answer "
        "(vanilla) and in the steered one; of the unsteered answer the gate is what these states would have opened. "
        "The first token has gate 0 where `steer_first_token` is off. "
        f"The figure's image is {numbers['figure_chosen']}."
    )
    limits = (
        "Single images illustrate and prove nothing; shades differ from token to token for grammatical reasons too. "
        "Whether low values go with hallucinated objects is measured by the detector, over all images."
    )
    return Figure("token-view", "Token by token", _draw_tokens(numbers, image), shows, limits)


def _draw_tokens(numbers: dict[str, Any], image: Any) -> Any:
    entry = numbers["figure"]
    placed = {side: lay_out(entry[side]["tokens"]) for side in SIDES}
    lines = max((place[0] for rows in placed.values() for place in rows), default=0) + 1
    width, height = (COLUMNS + 3) * _CHARACTER, 2 * (lines * _LINE + 0.75) + 0.5
    drawing, axes = new_figure(2 * width + 2.5, max(height, 3.0), 2, 3, width_ratios=[2.3, width, width])
    for axis in axes:
        axis.set_axis_off()
    axes[0].imshow(image)
    axes[0].set_title(textwrap.fill(f"image {entry['id']}", 34), size=8)
    axes[3].text(0, 1, _legend(entry), va="top", size=8, transform=axes[3].transAxes, linespacing=1.5)
    for row, (measure, label) in enumerate(MEASURES.items()):
        scale = numbers["scale"][measure]
        for column, (side, name) in enumerate(SIDES.items(), start=1):
            axis = axes[3 * row + column]
            axis.set(xlim=(0, COLUMNS + 2), ylim=(lines + 0.9, -0.1))
            for place in placed[side]:
                _draw_token(axis, *place, measure, scale)
            would = ", as it would be" if measure == "gate" and side == "vanilla" else ""
            axis.set_title(f"{name}: {label}{would}", size=9)
        _draw_scale(axes[3 * row + 2], scale, lines + 0.55)
    return drawing


def _legend(entry: dict[str, Any]) -> str:
    if entry["present"] is None:
        return "what is in the image\nis not known"
    inside = textwrap.fill("in the image: " + ", ".join(entry["present"]), 34)
    return f"{inside}\n\nframed with {ABSENT}: an object that\nis not in the image\nunderlined: an object that is"


def _draw_token(axes: Any, line: int, column: int, text: str, token: Token, measure: str, scale: list[float]) -> None:
    from matplotlib.patches import Rectangle

    frame: dict[str, Any] = {"edgecolor": "black", "linewidth": 1.3, "zorder": 2} if token["absent"] else {"zorder": 1}
    box = Rectangle((column, line + 0.06), len(text), 0.88, facecolor=shade(token[measure], scale), **frame)
    axes.add_patch(box)
    axes.text(
        column + len(text) / 2, line + 0.5, text, ha="center", va="center", family="monospace", size=9.0,
        weight="bold" if token["absent"] else "normal", zorder=3,
    )  # fmt: skip
    if token["absent"] is False:
        axes.plot([column, column + len(text)], [line + 0.9] * 2, color=DARK, linewidth=1.2, zorder=3)


def _draw_scale(axes: Any, scale: list[float], middle: float) -> None:
    """The shades below the tokens, with the values of their ends."""
    values = np.linspace(scale[0], scale[1], 40)
    extent = (COLUMNS - 22, COLUMNS - 8, middle + 0.25, middle - 0.25)
    axes.imshow([[shade(value, scale) for value in values]], extent=extent, aspect="auto")
    axes.text(extent[0] - 0.5, middle, f"{scale[0]:.2f}", ha="right", va="center", size=8)
    axes.text(extent[1] + 0.5, middle, f"{scale[1]:.2f}", ha="left", va="center", size=8)


def detector(numbers: dict[str, Any]) -> Figure:
    """ROC curves on the vanilla answers, AUC on both answers, similarities of both kinds of mentions."""
    shows = (
        "AUC is the chance that a grounded mention has a larger value than a hallucinated one; intervals are 95 % "
        "bootstrap intervals over images."
    )
    findings = []
    for side, name in SIDES.items():
        if not numbers[side]:
            continue
        scores = numbers[side]["scores"]
        values = [
            f"{label} {scores[key]['auc']:.2f} {brackets(scores[key]['interval'])}"
            for key, label in SCORES.items()
            if key != "earliness"
        ]
        against = scores["similarity"]["minus_probability"]
        findings.append(
            f"AUC in the {name} answers: {', '.join(values)}; similarity minus probability {against['value']:+.2f} "
            f"{brackets(against['interval'])}; the place in the answer alone {scores['earliness']['auc']:.2f}."
        )
    limits = (
        "The gate is a growing function of the similarity, so that it can detect nothing that the similarity does not "
        "(they differ where the gate is clamped, and over tokens of long names). Hallucinations come late in answers: "
        "a score that is no better than the place in the answer may know nothing but the place. A detector on these "
        "images is not one for others."
    )
    title = "Is the trace a detector of hallucinated objects?"
    return Figure("detector", title, _draw_detector(numbers), shows, limits, " ".join(findings))


def _draw_detector(numbers: dict[str, Any]) -> Any:
    sides = [side for side in SIDES if numbers[side]]
    main, name = numbers[sides[0]], SIDES[sides[0]]
    drawing, (left, middle, right) = new_figure(10.6, 3.7, 1, 3, width_ratios=[1.15, 1.2, 1.0])
    for line, (key, label) in zip(LINES, SCORES.items(), strict=False):
        width = 2.6 if key == "gate" else 1.5
        left.plot(*main["scores"][key]["roc"], linestyle=line, color=_STYLES[key][0], linewidth=width, label=label)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.6)
    left.set(xlabel="hallucinated taken for grounded (share)", ylabel="grounded mentions found (share)")
    counts = main["mentions"]
    left.set_title(f"ROC, {name} answers\n({counts['grounded']} grounded, {counts['hallucinated']} hallucinated)")
    left.legend(loc="lower right", fontsize=7)
    left.set_aspect("equal")
    _draw_intervals(middle, numbers, sides)
    values = main["values"]
    bins = np.linspace(min(map(min, values.values())), max(map(max, values.values())) + 1e-9, 25)
    for kind, options in (("grounded", {"color": BLUE}), ("hallucinated", OUTLINE)):
        histogram(right, values[kind], bins, label=f"{kind} (n = {len(values[kind])})", **options)
    right.set(xlabel="CARD similarity at the mention (cosine)", title=f"Similarity, {name} answers")
    right.set_ylim(0, right.get_ylim()[1] * 1.25)
    right.legend(loc="upper left", fontsize=7)
    return drawing


def _draw_intervals(axes: Any, numbers: dict[str, Any], sides: list[str]) -> None:
    """AUC with 95 % intervals, one block for each kind of answers."""
    place, ticks = 0.0, []
    for side in sides:
        for key, label in SCORES.items():
            entry, (colour, marker) = numbers[side]["scores"][key], _STYLES[key]
            axes.plot(entry["interval"], [place, place], color=colour, linewidth=2)
            filled = colour if side == "vanilla" else "white"
            axes.plot(entry["auc"], place, marker, ms=7, markerfacecolor=filled, markeredgecolor=colour)
            value_above(axes, f"{entry['auc']:.2f}", entry["auc"], place)
            ticks.append((place, f"{label},\n{SIDES[side]}"))
            place -= 1
        place -= 0.6
    axes.axvline(0.5, color=DARK, linewidth=0.8, linestyle=":")
    axes.set_yticks(*zip(*ticks, strict=True), size=7)
    axes.set(ylim=(place + 1.0, 0.8), xlabel="AUC (0.5: no better than chance)")
    axes.set_title(f"AUC, 95 % intervals over {numbers[sides[0]]['images_with_mentions']} images")
