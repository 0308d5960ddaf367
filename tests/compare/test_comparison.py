"""The comparison: one table from given records, the choice of a planted best setting, resuming, every cell honest."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark.costs import Cost, CostSettings
from rudder_hf.benchmark.timing import Ratio
from rudder_hf.calibrate import CalibrationOptions
from rudder_hf.compare import (
    BUDGET,
    CompareOptions,
    Comparison,
    Row,
    compare,
    joined,
    markdown,
)
from rudder_hf.compare.options import find_pictures
from rudder_hf.compare.picture import points, save_pictures, spread
from rudder_hf.compare.table import decoding_table, duel_table, verdict
from rudder_hf.evaluate.caption_pairs import caption_pair
from rudder_hf.evaluate.methods import make_methods, parse_names, parse_optional
from rudder_hf.evaluate.result import EvaluationResult, MetricDifference, MetricValue
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.methods import GROUPS, NAMES, get
from rudder_hf.metrics.errors import InputError
from rudder_hf.scenes.captions import broken_sentences, mentions
from rudder_hf.scenes.images import train_scene
from tests.cli.test_cli import refused, rudder
from tests.support.evaluating import run_task, scenes, subject

# Names


def test_groups_are_replaced_by_their_members() -> None:
    assert parse_names("all") == list(NAMES)
    assert parse_names("vcd,peers")[0] == "vcd"
    assert set(parse_names("vanilla, rudder,peers,controls")) == set(NAMES)
    assert parse_optional("vcd,peers") == set(GROUPS["peers"]) - {"vcd"}
    assert parse_optional("vcd,opera") == set()
    for wrong in ("", "everything", "vcd,vcd", "all,all"):
        with pytest.raises(ValueError, match="method"):
            parse_names(wrong)


def test_members_that_cannot_run_are_left_out_and_named_ones_refused() -> None:
    made, left_out = make_methods(parse_names("all"), subject(), optional=parse_optional("all"))
    assert [method.name for method in made] == [n for n in NAMES if n not in ("opera", "vti")]
    assert [note.split(" ")[0] for note in left_out] == ["vti", "opera"]
    made, _ = make_methods(["vanilla", "opera"], subject(), decoding="beam")
    assert [method.name for method in made] == ["vanilla", "opera"]
    with pytest.raises(ValueError, match="greedy"):
        make_methods(["vanilla", "opera"], subject())
    with pytest.raises(ValueError, match="settings for 'vcd'"):
        make_methods(["vanilla"], subject(), {"vcd": {"alpha": 1}})


def test_many_methods_are_rows_of_the_run_table(tmp_path: Path) -> None:
    made, _ = make_methods(["vanilla", "vcd", "vista-sla", "pai"], subject())
    assert run_task(tmp_path / "run", scenes(2), made) is not None
    text = (tmp_path / "run" / "table.md").read_text()
    for name in ("Vanilla", "vcd", "vista-sla", "pai"):
        assert f"\n| {name} |" in text


# What is tried


def test_pairs_for_vti_differ_in_objects_only() -> None:
    for number in range(20):
        scene = train_scene(0, number)
        correct, wrong = caption_pair(scene, number)
        assert set(mentions(correct)) <= set(scene.names)
        assert not set(mentions(wrong)) <= set(scene.names)
        assert len(mentions(correct)) == len(mentions(wrong))
        assert broken_sentences(correct) == broken_sentences(wrong) == 0


# The whole


OPTIONS = CompareOptions(
    methods=("rudder-beta", "vcd", "vista-sla", "opera", "vti", "rudder-random"),
    decodings=("greedy", "beam"),
    pictures=2,
    scenes=3,
    beam_scenes=2,
    pope_scenes=6,
    calibration=CalibrationOptions(bootstrap=20),
    costs=CostSettings(new_tokens=3, rounds=1, warmup=0, num_beams=2),
    max_new_tokens=3,
    num_beams=2,
    batch_size=40,
    bootstrap=50,
)


class Interrupted(Exception):
    """Stands for a kill."""


def test_a_comparison_from_beginning_to_end_with_kills(tmp_path: Path) -> None:
    data = find_pictures(DataOptions(), OPTIONS)
    calls = [0]

    def killing(text: str, done: int, total: int) -> None:
        calls[0] += 1
        if calls[0] in (25, 70, 110):
            raise Interrupted

    kills, comparison = 0, None
    while comparison is None:
        try:
            comparison = compare(subject(), data, tmp_path / "c", OPTIONS, killing)
        except Interrupted:
            kills += 1
            assert not (tmp_path / "c" / "comparison.json").exists()
    assert kills == 3
    assert Comparison.load(tmp_path / "c" / "comparison.json") == comparison
    rows = {(row.decoding, row.method, row.variant): row for row in comparison.rows}
    assert "no greedy variant" in rows["greedy", "opera", "published"].note
    assert rows["beam", "opera", "published"].metrics
    assert "directions" in rows["greedy", "vti", "published"].note
    assert rows["greedy", "vcd", "published"].changes
    assert rows["greedy", "vcd", "published"].answers["accuracy"].unit == "percent"
    # Controls, and published settings beside tuned ones, are run under the first decoding that they allow.
    for name in ("vcd", "vista-sla"):
        assert (("beam", name, "published") in rows) == (comparison.tunings[name]["chosen"] is None)
    assert ("beam", "rudder-random", "control") not in rows
    assert not rows["greedy", "vanilla", ""].changes
    assert set(comparison.tunings) == {"rudder-beta", "vcd", "vista-sla", "opera"}
    assert {len(tuning["tried"]) for tuning in comparison.tunings.values()} == {BUDGET}
    assert comparison.tunings["opera"]["decoding"]["name"] == "beam"
    text = (tmp_path / "c" / "table.md").read_text()
    assert text == markdown(comparison)
    other = replace(OPTIONS, scenes=2)
    with pytest.raises(InputError, match="another"):
        compare(subject(), find_pictures(DataOptions(), other), tmp_path / "c", other)
    # What is complete is read, not done again.
    assert compare(subject(), data, tmp_path / "c", OPTIONS) == comparison


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="no decoding"):
        CompareOptions(decodings=("greedy", "contrastive"))
    with pytest.raises(InputError, match="no method 'halc'"):
        CompareOptions(methods=("halc",))
    with pytest.raises(InputError, match="at least 1"):
        CompareOptions(scenes=0)
    assert CompareOptions(methods=("vcd",)).methods == ("vanilla", "vcd")


# Tables and pictures, from given records


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
    headings, table = decoding_table(made_up(), "greedy")
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
    _, rows = duel_table(made_up(), "greedy")
    assert rows == [
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


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_names_in_the_picture_do_not_overlap(heights: list[float]) -> None:
    moved = spread(heights, 0.04)
    gap = min(0.04, 1 / max(len(heights) - 1, 1))
    ordered = sorted(moved)
    assert all(later - earlier >= gap - 1e-9 for earlier, later in itertools.pairwise(ordered))
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 1 + 1e-9
    order = sorted(range(len(heights)), key=lambda place: (heights[place], place))
    assert [moved[place] for place in order] == ordered


def test_the_picture_shows_tuned_methods_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    shown = {point.name: point for point in points(made_up(), "greedy")}
    assert set(shown) == {"vanilla", "rudder-beta, tuned", "vcd, tuned"}
    assert (shown["vcd, tuned"].cost, shown["vcd, tuned"].group) == (2.0, "peers")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths = save_pictures(made_up(), tmp_path / name)
        assert [path.name for path in paths] == ["greedy.png", "greedy.svg"]
    assert (tmp_path / "one" / "greedy.svg").read_bytes() == (tmp_path / "two" / "greedy.svg").read_bytes()
    # Nothing that exists is drawn over.
    (tmp_path / "one" / "greedy.png").write_text("kept")
    save_pictures(made_up(), tmp_path / "one")
    assert (tmp_path / "one" / "greedy.png").read_text() == "kept"


# The commands


def test_commands_refuse_what_cannot_be(tmp_path: Path) -> None:
    refused(rudder("compare", "--decodings", "contrastive", "--out", tmp_path / "a"), "no decoding")
    refused(rudder("compare", "--methods", "halc", "--out", tmp_path / "a"), "Groups: all, rudder, peers, controls")
    refused(rudder("evaluate", "--methods", "opera", "--limit", 1, "--out", tmp_path / "c"), "no greedy variant")
    assert not list(tmp_path.iterdir())


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
