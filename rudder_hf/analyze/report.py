"""Figures and `report.html`, which stands alone: everything is inside, nothing is fetched."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from ..runtime.journal import write_new
from . import page, texts
from .drawing import (
    ablations,
    detector,
    evidence,
    geometry,
    layers,
    style,
    tokens,
)

REPORT, FIGURES = "report.html", "figures"


@dataclass(frozen=True)
class Shown:
    """One figure of the report.

    Attributes:
        name: Of its files.
        title: In the report.
        draw: Makes it.
        shows: What it shows.
        limits: What it does not support.
    """

    name: str
    title: str
    draw: Callable[[], Any]
    shows: str
    limits: str


def figures(numbers: dict[str, Any], thumbnails: dict[str, Any]) -> Iterator[Shown]:
    """The figures that the numbers have, in the order of the report."""
    if found := numbers.get("tokens"):
        picture = thumbnails[found["figure"]["id"]]
        yield Shown("token-view", "Token by token", partial(tokens.draw_tokens, found, picture), *texts.tokens(found))
    if found := numbers.get("detector"):
        yield Shown(
            "detector", "Is the trace a detector of hallucinated objects?",
            partial(detector.draw_detector, found), *texts.detector(found),
        )  # fmt: skip
    if found := numbers.get("layers"):
        yield Shown("layers", "Layer dynamics", partial(layers.draw_layers, found), *texts.layers(found))
    if found := numbers.get("geometry"):
        yield from _geometry(found)
    if found := numbers.get("ablations"):
        yield from _ablations(found)


def _geometry(found: dict[str, Any]) -> Iterator[Shown]:
    if found["rotation"]:
        yield Shown(
            "rotation", "Rotation of CARD by the picture",
            partial(geometry.draw_rotation, found["rotation"]), *texts.rotation(found["rotation"]),
        )  # fmt: skip
    if found["probe"] or found["neighbours"]:
        yield Shown(
            "evidence", "Does CARD know what is in the picture?",
            partial(evidence.draw_evidence, found), *texts.evidence(found),
        )  # fmt: skip
    if found["semantic"]:
        yield Shown(
            "categories", "CARD by category",
            partial(evidence.draw_semantic, found["semantic"]), *texts.semantic(found["semantic"]),
        )  # fmt: skip
    if found["overlay"] or found["steering_map"]:
        yield Shown(
            "maps", "Maps of CARD and steering vectors", partial(geometry.draw_maps, found), *texts.maps(found)
        )
    if found["clusters"]:
        yield Shown(
            "clusters", "Clusters of the steering vectors",
            partial(geometry.draw_clusters, found["clusters"]), *texts.clusters(found["clusters"]),
        )  # fmt: skip


def _ablations(found: dict[str, Any]) -> Iterator[Shown]:
    seen: set[str] = set()
    for grid in found["grids"]:
        # The first is the chosen setting's, and has the plain name.
        kind = "-".join(str(grid[key]) for key in ("mode", "span", "pool") if key in grid)
        name = "heatmaps" if not seen else f"heatmaps-layer{grid['layer']}-{kind}"
        while name in seen:
            name += "-more"
        seen.add(name)
        yield Shown(
            name, f"Strength and sensitivity, layer {grid['layer']}",
            partial(ablations.draw_grid, found, grid), *texts.grid(found, grid),
        )  # fmt: skip
    if found["sweep"]:
        yield Shown(
            "layer-ablation", "Which layer to steer",
            partial(ablations.draw_sweep, found["sweep"]), *texts.sweep(found["sweep"]),
        )  # fmt: skip
    if found["pope"]:
        yield Shown("pope", "POPE", partial(ablations.draw_pope, found["pope"]), *texts.pope(found))


def write_report(out: Path, numbers: dict[str, Any], thumbnails: dict[str, Any]) -> Path:
    """Draw every figure into `figures/` as PNG and SVG, and write the report.

    Args:
        out: The analysis' folder.
        numbers: What `analyse` found.
        thumbnails: Pictures of the token view by id, as PIL has them.
    """
    sections = []
    with style.styled():
        for shown in figures(numbers, thumbnails):
            path = style.save(shown.draw(), out / FIGURES, shown.name)
            sections.append(page.section(shown.name, shown.title, shown.shows, shown.limits, _data(path.read_bytes())))
            if shown.name == "token-view":
                sections.append(page.token_views(numbers["tokens"], _small(thumbnails)))
    text = page.document(numbers, sections)
    write_new(out / REPORT, text)
    return out / REPORT


def _small(thumbnails: dict[str, Any], side: int = 240) -> dict[str, str]:
    """Pictures as data, at most so many pixels wide."""
    found = {}
    for name, picture in thumbnails.items():
        copy = picture.copy()
        copy.thumbnail((side, side))
        buffer = io.BytesIO()
        copy.save(buffer, format="PNG")
        found[name] = _data(buffer.getvalue())
    return found


def _data(content: bytes) -> str:
    return escape("data:image/png;base64," + base64.b64encode(content).decode())
