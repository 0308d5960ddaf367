"""Numbers, tables and pages as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rudder_hf.runtime.figures import new_figure, save_figure, styled
from rudder_hf.runtime.report import (
    Table,
    heading,
    html_figure,
    html_page,
    number,
    p_value,
    size,
    thumbnail_uri,
    with_interval,
)

TABLE = Table(
    ["Decoding", "Method", "CHAIR_S ↓"],
    [["Greedy", "a|b", "1.0 %"], ["Greedy", "RUDDER", "2.0"], ["Beam", "<x>", "3.0"]],
)


def test_numbers() -> None:
    assert number(12.345, "percent") == "12.3"
    assert number(1.2345, "nats", sign=True) == "+1.234"
    assert with_interval(48.2, 44.0, 52.1, "percent") == "48.2 [44.0, 52.1]"
    assert (p_value(0.04), p_value(0.0001)) == ("0.040", "< 0.001")
    assert (heading("CHAIR_S", "lower"), heading("Length")) == ("CHAIR_S ↓", "Length")
    assert (size(1.5e9), size(12)) == ("1.5 GB", "12 B")


def test_markdown_and_latex() -> None:
    assert TABLE.markdown().splitlines() == [
        "| Decoding | Method | CHAIR_S ↓ |", "| --- | --- | --- |", "| Greedy | a/b | 1.0 % |",
        "| Greedy | RUDDER | 2.0 |", "| Beam | <x> | 3.0 |",
    ]  # fmt: skip
    assert TABLE.latex().splitlines() == [
        r"\begin{tabular}{lcc}", r"\toprule", r"Decoding & Method & CHAIR$_S$ $\downarrow$ \\", r"\midrule",
        r"Greedy & a|b & 1.0 \% \\", r"Greedy & RUDDER & 2.0 \\", r"Beam & <x> & 3.0 \\", r"\bottomrule",
        r"\end{tabular}",
    ]  # fmt: skip


def test_html(tmp_path: Path) -> None:
    with styled():
        png = save_figure(new_figure(3, 2)[0], tmp_path / "figure").read_bytes()
    page = html_page("a & b", ["<p>text</p>", "", html_figure(png, 'the "figure"')], css="p { color: red; }")
    assert "<title>a &amp; b</title>" in page
    assert 'alt="the &quot;figure&quot;" width="288"' in page  # three inches
    assert "p { color: red; }" in page
    assert "http" not in page
    assert thumbnail_uri(Image.new("RGB", (500, 300))).startswith("data:image/png;base64,")


def test_console_cuts_nothing_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Table(["", *[f"column {n}" for n in range(8)]], [["[row]", *["12.3 [11.2, 14.5]"] * 8]], title="All").print()
    shown = capsys.readouterr().out
    assert shown.count("12.3 [11.2, 14.5]") == 8
    assert "[row]" in shown


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        with styled():
            figure, axes = new_figure(3, 2, rows=2)
            axes[1].plot([1, 2], [3, 4])
            png = save_figure(figure, tmp_path / folder / "layer 1.5")
        assert png.name == "layer 1.5.png"
    for suffix in (".png", ".svg"):
        one, two = ((tmp_path / folder / f"layer 1.5{suffix}").read_bytes() for folder in ("one", "two"))
        assert one == two
