"""Tables and the figure of a comparison: every column, wins and losses, joined results, names that do not overlap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark.costs import Cost
from rudder_hf.benchmark.timing import Ratio
from rudder_hf.compare import Comparison, Row, markdown
from rudder_hf.compare.figure import group_of, points, save_figures, spread
from rudder_hf.compare.table import decoding_table, duel_table, joined, verdict
from rudder_hf.evaluate.result import EvaluationResult, MetricDifference, MetricValue
from rudder_hf.methods import get
from rudder_hf.metrics.errors import InputError
from tests.support.command import refused, rudder
from tests.support.evaluating import damage, run_task, scenes


def metric(label: str, value: float, direction: str = "lower") -> MetricValue:
    return MetricValue(label, value, direction, "percent", value - 2, value + 2)


def change(label: str, value: float, spread: float = 2.0, direction: str = "lower") -> MetricDifference:
    return MetricDifference(label, value, direction, "percent", value - spread, value + spread, 0.01)


def cost(name: str, ratio: float | None, decoding: str = "greedy", **more: Any) -> Cost:
    told = None if ratio is None else Ratio(ratio, ratio, ratio, (ratio - 0.01, ratio + 0.01))
    base = {"ms_per_token": 1.0, "forwards_per_token": 1.0, "prompt_forwards": 1.0, "peak_bytes": 1_500_000}
    return Cost(name, decoding, **{**base, "ratio": told, "peak_ratio": 1.0, **more})


def made_up() -> Comparison:
    rows = [
        Row("vanilla", "", "greedy", metrics={"chair_s": metric("CHAIR_S", 70.0)}),
        Row(
            "rudder-beta",
            "tuned",
            "greedy",
            metrics={"chair_s": metric("CHAIR_S", 43.0)},
            changes={"chair_s": change("CHAIR_S", -27.0)},
            answers={"accuracy": metric("Accuracy", 94.0, "higher")},
            answer_changes={"accuracy": change("Accuracy", 0.0, direction="higher")},
        ),
        Row(
            "vcd",
            "published",
            "greedy",
            metrics={"chair_s": metric("CHAIR_S", 60.0)},
            changes={"chair_s": change("CHAIR_S", -10.0)},
            ours={"chair_s": change("CHAIR_S", -17.0)},
        ),
        Row(
            "vcd",
            "tuned",
            "greedy",
            metrics={"chair_s": metric("CHAIR_S", 42.0)},
            changes={"chair_s": change("CHAIR_S", -28.0)},
            ours={"chair_s": change("CHAIR_S", 1.0)},
        ),
        Row("opera", "published", "greedy", note="opera is a beam search and has no greedy variant"),
        Row("opera", "published", "beam", metrics={"chair_s": metric("CHAIR_S", 50.0)}),
    ]
    costs = [
        cost("vanilla", None),
        cost("rudder-beta", 0.98),
        cost("vcd", 0.5, forwards_per_token=2.0, peak_ratio=1.9),
        cost("opera", 0.12, "beam", forwards_per_token=6.08),
    ]
    return Comparison("made up", rows, costs, reference="rudder-beta, tuned", notes=["a note"])


def test_the_table_has_every_column_and_says_what_was_not_run() -> None:
    shown = decoding_table(made_up(), "greedy")
    headings, table = shown.headings, shown.rows
    assert headings[:4] == ["Method", "Settings", "CHAIR_S ↓", "POPE Accuracy ↑"]
    assert len({len(line) for line in [headings, *table]}) == 1
    rows = {(line[0], line[1]): line for line in table}
    assert rows["vanilla", "-"][2] == "70.0 [68.0, 72.0]"
    assert rows["rudder-beta", "tuned"][2:5] == [
        "43.0 (-27.0 [-29.0, -25.0])",
        "94.0 (+0.0 [-2.0, +2.0])",
        "0.980 [0.970, 0.990]",
    ]
    assert rows["vcd", "tuned"][4:] == ["0.500 [0.490, 0.510]", "2.00", "1.00", "1.5 MB (1.90)"]
    assert rows["opera", "published"][2].startswith("opera is a beam search")
    text = markdown(made_up())
    assert text.count("The truncated control is missing") == 2  # made-up rows have none, under either decoding
    assert text.count("| vcd | tuned |") == 2
    assert text.endswith("a note\n")
    assert "6.08" in text


def test_wins_ties_and_losses_follow_the_interval() -> None:
    assert verdict(change("CHAIR_S", -5.0)) == "wins"
    assert verdict(change("CHAIR_S", 5.0)) == "loses"
    assert verdict(change("CHAIR_S", -1.0)) == "ties"
    assert verdict(change("Recall", 5.0, direction="higher")) == "wins"
    assert verdict(change("Recall", -5.0, direction="higher")) == "loses"
    assert duel_table(made_up(), "greedy").rows == [
        ["vcd", "published", "wins, -17.0 [-19.0, -15.0]"],
        ["vcd", "tuned", "ties, +1.0 [-1.0, +3.0]"],
    ]


def test_results_of_separate_commands_are_joined(tmp_path: Path) -> None:
    methods = [get("vanilla"), get("vcd")]
    captions = run_task(tmp_path / "run", scenes(3), methods)
    assert captions is not None
    questions = replace(
        captions, kind="pope", methods=[replace(m, metrics={}, differences={}) for m in captions.methods]
    )
    both = joined([captions, questions], [])
    assert [(row.method, bool(row.changes)) for row in both.rows] == [("vanilla", False), ("vcd", True)]
    assert "| vcd |" in markdown(both)
    with pytest.raises(ValueError, match="Two results"):
        joined([captions, captions], [])
    other = EvaluationResult(**{**vars(captions), "model": {"name": "another"}})
    with pytest.raises(ValueError, match="one model"):
        joined([captions, other], [])


def test_costs_and_captions_of_two_commands_become_one_table(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    measured = rudder("benchmark", "--shape", "tiny", "--methods", "vcd", "--quick", "--new-tokens", 3, "--out", costs)
    assert measured.exit_code == 0, measured.output
    assert "vcd" in measured.stdout
    methods = [get("vanilla"), get("vcd")]
    assert run_task(tmp_path / "run", scenes(2), methods) is not None
    told = rudder("table", tmp_path / "run", costs)
    assert told.exit_code == 0, told.output
    row = next(line for line in told.stdout.splitlines() if line.startswith("| vcd |"))
    assert "| 2.00 | 2.00 |" in row
    refused(rudder("table", tmp_path / "run", costs, "--latex"), "Markdown only")
    refused(rudder("benchmark", "--shape", "tiny", "--methods", "vcd", "--quick", "--out", costs), "never overwritten")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["rows"], {}, "rows is {}, but has to be a list"),
        (["rows", 1, "changes", "chair_s", "p_value"], ..., r"rows\[1\]\.changes\.chair_s lacks p_value"),
        (["costs", 1, "ratio", "interval"], [1], r"costs\[1\]\.ratio\.interval is \[1\], but has to be a list of 2"),
    ],
)
def test_a_damaged_comparison_is_named(tmp_path: Path, place: list[str | int], value: object, words: str) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(made_up().to_json())
    assert Comparison.load(path) == made_up()
    damage(path, place, value)
    with pytest.raises(InputError, match=f"comparison.json is damaged: {words}"):
        Comparison.load(path)


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
    shown = points(made_up(), "greedy")
    assert set(shown) == {"vanilla", "rudder-beta, tuned", "vcd, tuned"}
    row, time = shown["vcd, tuned"]
    assert (row.variant, time, group_of(row.method)) == ("tuned", 2.0, "peers")
    for name in ("one", "two"):
        save_figures(made_up(), tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["greedy.png", "greedy.svg"]
    assert (tmp_path / "one" / "greedy.svg").read_bytes() == (tmp_path / "two" / "greedy.svg").read_bytes()
    # Nothing that exists is drawn over.
    (tmp_path / "one" / "greedy.png").write_text("kept")
    save_figures(made_up(), tmp_path / "one")
    assert (tmp_path / "one" / "greedy.png").read_text() == "kept"
