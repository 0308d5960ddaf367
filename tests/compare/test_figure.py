"""The figure of a comparison: which points it has, and that names do not overlap."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.compare.figure import points, save_figures, spread
from tests.compare.made_up import made_up


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_names_in_the_figure_do_not_overlap(heights: list[float]) -> None:
    moved = spread(heights, 0.04)
    gap = min(0.04, 1 / max(len(heights) - 1, 1))
    ordered = sorted(moved)
    assert all(later - earlier >= gap - 1e-9 for earlier, later in itertools.pairwise(ordered))
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 1 + 1e-9
    order = sorted(range(len(heights)), key=lambda place: (heights[place], place))
    assert [moved[place] for place in order] == ordered


def test_the_figure_shows_tuned_methods_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the figure needs matplotlib")
    shown = {point.name: point for point in points(made_up(), "greedy")}
    assert set(shown) == {"vanilla", "rudder-beta, tuned", "vcd, tuned"}
    assert (shown["vcd, tuned"].cost, shown["vcd, tuned"].group) == (2.0, "peers")
    for name in ("one", "two"):
        save_figures(made_up(), tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["greedy.png", "greedy.svg"]
    assert (tmp_path / "one" / "greedy.svg").read_bytes() == (tmp_path / "two" / "greedy.svg").read_bytes()
    # Nothing that exists is drawn over.
    (tmp_path / "one" / "greedy.png").write_text("kept")
    save_figures(made_up(), tmp_path / "one")
    assert (tmp_path / "one" / "greedy.png").read_text() == "kept"
