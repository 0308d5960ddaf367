"""Tables of a comparison: every column, wins and losses, results of separate commands in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rudder_hf.compare import Comparison, joined, markdown
from rudder_hf.compare.table import decoding_table, duel_table, verdict
from rudder_hf.evaluate.result import EvaluationResult
from rudder_hf.methods import get
from rudder_hf.metrics.errors import InputError
from tests.compare.made_up import change, made_up
from tests.support.command import refused, rudder
from tests.support.evaluating import damage, run_task, scenes


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
    told = rudder("evaluate", "--table", tmp_path / "run", "--table", costs)
    assert told.exit_code == 0, told.output
    row = next(line for line in told.stdout.splitlines() if line.startswith("| vcd |"))
    assert "| 2.00 | 2.00 |" in row
    refused(rudder("evaluate", "--table", tmp_path / "run", "--table", costs, "--latex"), "Markdown only")
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
