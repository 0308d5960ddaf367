"""The truncated control in results and tables, and what is said about it and about RUDDER's controls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rudder_hf.evaluate import tables
from rudder_hf.evaluate.result import ControlResult, MetricDifference, Result, Scoring, build_result, score_answers
from rudder_hf.evaluate.run import Variant
from rudder_hf.evaluate.statements import against_control, without_effect
from rudder_hf.evaluate.tasks import chair_sample
from rudder_hf.metrics.chair import CHAIR_METRICS

IMAGES = 60
TRUTH = {
    n: ["dog", "bench", "car", *(["cat"] if n % 3 else []), *([] if n % 5 else ["person"])] for n in range(IMAGES)
}
VANILLA = [["dog", "cat", "bench", "car", "person"]] * IMAGES
CUT = [names[:3] for names in VANILLA]
BETTER = [[name for name in names if name in TRUTH[n] and (name != "car" or n % 4)] for n, names in enumerate(VANILLA)]
LABEL = "vanilla cut to RUDDER-Beta's recall"


def result(methods: dict[str, list[list[str]]]) -> Result:
    """A run of made-up captions, which name objects."""
    samples = [chair_sample(n, f"{n}.jpg", "describe", objects, []) for n, objects in TRUTH.items()]
    asked, how = [Variant(name, name) for name in methods], Scoring(bootstrap=300)
    scored = []
    for captions in methods.values():
        texts = [f"A {' and a '.join(names)}." for names in captions]
        rows = [{"id": str(n), "answer": text, "tokens": 5} for n, text in enumerate(texts)]
        scored.append(score_answers("chair", "chair", samples, rows, how))
    plan = {
        "task": "chair", "kind": "chair", "data": {}, "notes": [], "model": {"name": "made up"}, "prompt": "",
        "decoding": {"name": "greedy"}, "seed": 0,
    }  # fmt: skip
    return build_result(plan, samples, asked, scored, how, {})


def test_a_method_that_only_says_less_cannot_be_told_from_the_control() -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": CUT})
    steered = found.method("rudder-beta")
    assert steered.differences["chair_s"].high < 0  # which CHAIR alone takes for a success
    assert steered.control is not None
    assert steered.control.metrics["recall"].value == steered.metrics["recall"].value
    assert all((d.value, d.low, d.high) == (0, 0, 0) for d in steered.control.differences.values())
    said = tables.notes(found)[-1]
    assert said.startswith(
        "rudder-beta is not significantly different from vanilla cut to the same recall: CHAIR_S +0.0 [+0.0, +0.0]"
    )
    assert found.method("vanilla").control is None


def test_the_full_table_has_the_control_beside_its_method() -> None:
    found = result({"vanilla": VANILLA, "rudder-beta": BETTER, "rudder-add": CUT})
    table = tables.full_table(found)
    names = ["vanilla", "rudder-beta", "rudder-beta - vanilla", "vanilla cut to its recall (rudder-beta)"]
    assert table.headings[1:5] == names
    assert {row[0].split(" ↓")[0].split(" ↑")[0] for row in table.rows} >= {metric.label for metric in CHAIR_METRICS}
    assert len({len(row) for row in [table.headings, *table.rows]}) == 1
    sentences = [line for line in tables.notes(found) if "same recall" in line]
    assert len(sentences) == 2
    assert all(line in tables.markdown([found]) for line in sentences)


def test_without_vanilla_the_missing_control_is_told() -> None:
    found = result({"rudder-beta": BETTER, "rudder-add": CUT})
    assert all(method.control is None for method in found.methods)
    assert "The run has no vanilla, so it is not known whether CHAIR is lower than by saying less" in tables.markdown(
        [found]
    )


@pytest.mark.parametrize(("judged", "steered"), [("rudder", "rudder-beta"), ("contrast", "contrast")])
def test_controls_are_judged_by_a_share_of_the_change_that_they_control(judged: str, steered: str) -> None:
    """The same captions as vanilla's are without effect; those that only stop earlier are not."""
    methods = {"vanilla": VANILLA, "rudder-beta": VANILLA, steered: BETTER}
    methods |= {f"{judged}-random": VANILLA, f"{judged}-shuffled": CUT}
    said = {line.split(":")[0]: line for line in tables.notes(result(methods)) if ": CHAIR_S" in line}
    assert "without effect, its interval lies within +-" in said[f"{judged}-random"]
    assert f"(33% of the change of {steered})" in said[f"{judged}-random"]
    assert "not without effect" in said[f"{judged}-shuffled"]
    del methods[steered]
    assert not [line for line in tables.notes(result(methods)) if line.startswith(f"{judged}-random: CHAIR_S")]


def change(
    value: float, low: float, high: float, label: str = "CHAIR_S", direction: str = "lower"
) -> MetricDifference:
    return MetricDifference(label, value, direction, "percent", low, high, 0.5 if low <= 0 <= high else 0.01)


EFFECT = change(-14.0, -18.0, -10.0)


@pytest.mark.parametrize(
    ("control", "effect", "words"),
    [
        (change(-2.4, -5.6, 0.8), EFFECT, "open, its interval holds 0"),
        (change(-0.4, -3.6, 2.8), EFFECT, "without effect, its interval lies within +-4.7"),
        (change(-2.4, -4.6, -0.2), EFFECT, "without effect, its interval lies within +-4.7"),
        (change(-4.4, -7.6, -1.2), EFFECT, "not without effect, its interval leaves out 0"),
        (change(0.1, -0.1, 0.3), change(-1.0, -3.0, 1.0), "because the change of RUDDER-Beta itself is open"),
    ],
)
def test_a_missing_significance_is_no_equivalence(
    control: MetricDifference, effect: MetricDifference, words: str
) -> None:
    assert words in without_effect("random", control, effect, "RUDDER-Beta")


BAD, OPEN, GOOD = change(3, 1, 5), change(-1, -3, 1), change(-4.1, -7, -1.2)
MORE = change(2, 1, 3, "F1", "higher")


@pytest.mark.parametrize(
    ("differences", "mentions", "words"),
    [
        (
            {"chair_s": GOOD, "f1": change(0, -1, 1, "F1", "higher")},
            4,
            "X names fewer absent objects than vanilla cut to the same recall: better in CHAIR_S -4.1 [-7.0, -1.2]; "
            "no significant difference in F1 +0.0 [-1.0, +1.0].",
        ),
        ({"chair_s": replace(GOOD, p_value=0.12)}, 4, "X is not significantly different from vanilla cut"),
        ({"chair_s": OPEN}, 4, "X is not significantly different from vanilla cut to the same recall: CHAIR_S -1.0 ["),
        ({"chair_s": BAD}, 4, "X names more absent objects than vanilla cut to the same recall: CHAIR_S +3.0 ["),
        (
            {"chair_s": OPEN, "chair_i": replace(GOOD, label="CHAIR_I")},
            4,
            "X is better in CHAIR_I alone, which repeated true objects lower too, than vanilla cut to the same "
            "recall: better in CHAIR_I",
        ),
        ({"chair_s": GOOD, "chair_i": BAD}, 4, "X is better in some and worse in others than vanilla cut"),
        ({"chair_s": OPEN, "f1": MORE}, None, "X is better than vanilla, whose recall is not higher: better in F1"),
        ({"chair_s": OPEN, "f1": change(-2, -3, -1, "F1", "higher")}, 4, "X is worse than vanilla cut"),
    ],
)
def test_sentences_say_what_the_intervals_allow(
    differences: dict[str, MetricDifference], mentions: int | None, words: str
) -> None:
    assert against_control("X", ControlResult(mentions, 0, {}, differences)).startswith(words)
