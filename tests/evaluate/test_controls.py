"""The truncated control in results and tables, and what is said about it and about RUDDER's controls."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.compare.table import joined, markdown, statements
from rudder_hf.evaluate import tables
from rudder_hf.evaluate.result import ControlResult, EvaluationResult, MetricDifference
from rudder_hf.evaluate.scoring import Scoring, build_result
from rudder_hf.evaluate.statements import against_control, without_effect
from rudder_hf.evaluate.tasks.captions import chair_sample
from rudder_hf.metrics.chair import CAPTION_COLUMNS

IMAGES = 60
TRUTH = {
    n: ["dog", "bench", "car", *(["cat"] if n % 3 else []), *([] if n % 5 else ["person"])] for n in range(IMAGES)
}
VANILLA = [["dog", "cat", "bench", "car", "person"]] * IMAGES
CUT = [names[:3] for names in VANILLA]
BETTER = [[name for name in names if name in TRUTH[n] and (name != "car" or n % 4)] for n, names in enumerate(VANILLA)]
LABEL = "vanilla cut to RUDDER-Beta's recall"


def result(methods: dict[str, list[list[str]]], **scoring: Any) -> EvaluationResult:
    """A run of made-up captions, which name objects."""
    samples = [chair_sample(n, f"{n}.jpg", "describe", objects, []) for n, objects in TRUTH.items()]
    rows = [
        {"method": method, "id": str(n), "answer": f"A {' and a '.join(names)}.", "tokens": 5, "log_likelihood": None}
        for method, captions in methods.items()
        for n, names in enumerate(captions)
    ]
    plan = {
        "task": "chair", "kind": "chair", "data": {}, "notes": [], "model": {"name": "made up"}, "prompt": "",
        "methods": {name: {} for name in methods}, "decoding": {"name": "greedy"}, "seed": 0,
    }  # fmt: skip
    return build_result(plan, samples, rows, Scoring(bootstrap=300, **scoring), {})


def test_a_method_that_only_says_less_cannot_be_told_from_the_control() -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": CUT})
    steered = found.method("rudder-beta")
    assert steered.differences["chair_s"].high < 0  # which CHAIR alone takes for a success
    assert steered.control is not None
    assert steered.control.metrics["recall"].value == steered.metrics["recall"].value
    assert all((d.value, d.low, d.high) == (0, 0, 0) for d in steered.control.differences.values())
    said = tables.notes(found)[-1]
    assert said.startswith("RUDDER-Beta cannot be told from vanilla cut to the same recall: CHAIR_S +0.0 [+0.0, +0.0]")
    assert found.method("vanilla").control is None


def test_a_method_that_is_better_is_called_so() -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": BETTER})
    control = found.method("rudder-beta").control
    assert control is not None
    change = control.differences["chair_s"]
    said = tables.notes(found)[-1]
    told = f"CHAIR_S {change.value:+.1f} [{change.low:+.1f}, {change.high:+.1f}]"
    assert said.startswith(f"RUDDER-Beta names fewer absent objects than vanilla cut to the same recall: {told}, ")
    assert ", F1 +" in said


def test_every_table_has_the_control_as_a_row_and_every_column() -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": BETTER, "rudder-add": CUT})
    labels = [found.methods[0].metrics[name].label for name in CAPTION_COLUMNS]
    both = joined([found, replace(found, kind="pope", methods=[])], [])
    for text in (tables.method_table(found).markdown(), tables.paper_table([found]).markdown(), markdown(both)):
        head = next(line for line in text.splitlines() if "CHAIR_S" in line)
        assert [label for label in labels if label not in head] == []
        assert sum(line.count(f"| {LABEL} |") for line in text.splitlines()) == 1
        assert "| vanilla cut to RUDDER-Add's recall |" in text
    run = tables.run_table(found)
    assert {LABEL, f"RUDDER-Beta - {LABEL}", "RUDDER-Beta - Vanilla"} <= set(run.headings)
    assert set(labels) <= {row[0].split(" ↓")[0].split(" ↑")[0] for row in run.rows}
    assert len({len(row) for row in [run.headings, *run.rows]}) == 1
    latex = tables.paper_latex([found])
    assert f"& {LABEL} &" in latex
    assert "Precision" in latex
    sentences = [line for line in tables.notes(found) if "same recall" in line]
    assert len(sentences) == 2
    for text in (tables.run_markdown(found), markdown(both), latex):
        assert [line for line in sentences if line.split(" than ")[-1].split(" from ")[-1] not in text] == []


def test_without_vanilla_the_missing_control_is_told() -> None:
    found = result({"rudder-beta": BETTER, "rudder-add": CUT})
    assert all(method.control is None for method in found.methods)
    assert "control is missing, because the run has no vanilla" in tables.run_markdown(found)


def test_results_of_the_first_format_are_read_and_say_what_they_lack(tmp_path: Path) -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": BETTER})
    record = {**asdict(found), "format": "rudder-evaluation-1"}
    for method in record["methods"]:
        del method["control"]
    del record["scoring"]["margin"]
    (tmp_path / "result.json").write_text(json.dumps(record))
    old = EvaluationResult.load(tmp_path)
    assert old.method("rudder-beta").metrics == found.method("rudder-beta").metrics
    assert "older than it: use `rudder score`" in tables.run_markdown(old)


def test_controls_of_rudder_are_judged_by_the_margin() -> None:
    """The same captions as vanilla's are without effect; those that only stop earlier are not."""
    methods = {"vanilla": VANILLA, "rudder-beta": BETTER, "rudder-random": VANILLA, "rudder-negated": CUT}
    said = tables.notes(result(methods))
    (random,) = [line for line in said if line.startswith("rudder-random: CHAIR_S")]
    assert "without effect, its interval lies within +-" in random
    assert "(33% of the change of RUDDER-Beta)" in random
    (negated,) = [line for line in said if line.startswith("rudder-negated: CHAIR_S")]
    assert "not without effect" in negated
    wide = tables.notes(result(methods, margin=1.0))
    assert any(line.startswith("rudder-negated: CHAIR_S") and ": without effect" in line for line in wide)


def test_controls_of_the_contrast_are_judged_by_the_contrast() -> None:
    methods = {"vanilla": VANILLA, "rudder-beta": VANILLA, "contrast": BETTER, "contrast-random": VANILLA}
    found = result(methods)
    for said in (tables.notes(found), statements(joined([found], []), "greedy")):
        (random,) = [line for line in said if line.startswith("contrast-random: CHAIR_S")]
        assert "without effect" in random
        assert "of the change of contrast)" in random
    alone = {name: texts for name, texts in methods.items() if name != "contrast"}
    assert not [line for line in tables.notes(result(alone)) if line.startswith("contrast-random: CHAIR_S")]


def change(
    value: float, low: float, high: float, label: str = "CHAIR_S", direction: str = "lower"
) -> MetricDifference:
    return MetricDifference(label, value, direction, "percent", low, high, 0.5 if low <= 0 <= high else 0.01)


@pytest.mark.parametrize(
    ("control", "effect", "words"),
    [
        (
            change(-2.4, -5.6, 0.8),
            change(-14.0, -18.0, -10.0),
            "open, it cannot be told from 0",
        ),
        (change(-0.4, -3.6, 2.8), change(-14.0, -18.0, -10.0), "without effect, its interval lies within +-4.7"),
        (change(-2.4, -4.6, -0.2), change(-14.0, -18.0, -10.0), "without effect, its interval lies within +-4.7"),
        (change(-4.4, -7.6, -1.2), change(-14.0, -18.0, -10.0), "not without effect, its interval leaves out 0"),
        (change(0.1, -0.1, 0.3), change(-1.0, -3.0, 1.0), "because the change of RUDDER-Beta itself is open"),
    ],
)
def test_a_missing_significance_is_no_equivalence(
    control: MetricDifference, effect: MetricDifference, words: str
) -> None:
    assert words in without_effect("random", control, effect, "RUDDER-Beta", 1 / 3)


BAD, OPEN, GOOD = change(3, 1, 5), change(-1, -3, 1), change(-4.1, -7, -1.2)
MORE = change(2, 1, 3, "F1", "higher")


@pytest.mark.parametrize(
    ("differences", "mentions", "words"),
    [
        (
            {"chair_s": GOOD, "f1": change(0, -1, 1, "F1", "higher")},
            4,
            "X names fewer absent objects than vanilla cut to the same recall: better in CHAIR_S -4.1 [-7.0, -1.2]; "
            "not to be told apart in F1 +0.0 [-1.0, +1.0].",
        ),
        (
            {"chair_s": replace(GOOD, p_value=0.12)},
            4,
            "X cannot be told from vanilla cut",
        ),
        ({"chair_s": OPEN}, 4, "X cannot be told from vanilla cut to the same recall: CHAIR_S -1.0 [-3.0, +1.0]."),
        (
            {"chair_s": BAD},
            4,
            "X names more absent objects than vanilla cut to the same recall: CHAIR_S +3.0 [+1.0, +5.0].",
        ),
        (
            {"chair_s": OPEN, "chair_i": replace(GOOD, label="CHAIR_I")},
            4,
            "X is better in CHAIR_I alone, which repeated true objects lower too, than vanilla cut to the same "
            "recall: better in CHAIR_I",
        ),
        ({"chair_s": GOOD, "chair_i": BAD}, 4, "X is better in some and worse in others than vanilla cut"),
        ({"chair_s": OPEN, "f1": MORE}, None, "X is better than vanilla uncut, which recalls no more: better in F1"),
        ({"chair_s": OPEN, "f1": change(-2, -3, -1, "F1", "higher")}, 4, "X is worse than vanilla cut"),
    ],
)
def test_sentences_say_what_the_intervals_allow(
    differences: dict[str, MetricDifference], mentions: int | None, words: str
) -> None:
    assert against_control("X", ControlResult(mentions, 0, {}, differences)).startswith(words)
