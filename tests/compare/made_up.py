"""A comparison with made-up numbers, for tables and figures."""

from __future__ import annotations

from typing import Any

from rudder_hf.benchmark.costs import Cost
from rudder_hf.benchmark.timing import Ratio
from rudder_hf.compare import Comparison, Row
from rudder_hf.evaluate.result import MetricDifference, MetricValue


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
