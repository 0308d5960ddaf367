"""What may be called calibrated: every reason of refusal, and chance, which hardly ever may."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.null_calibration import SCENES, no_effect, quarter_removed, simulate, table
from rudder_hf import RudderConfig, methods
from rudder_hf.calibrate import VANILLA, CalibrationOptions, Limits, Setting
from rudder_hf.calibrate.choice import LABELLED, Choice
from rudder_hf.calibrate.outcome import choice_record
from rudder_hf.calibrate.report import _held_out, summary
from rudder_hf.calibrate.verdict import held_out_rows, less_in_words, refusal, shown_by, truncated
from rudder_hf.evaluate.methods import settings_record
from rudder_hf.evaluate.scoring import Scored
from rudder_hf.hub.card import Provenance, render_card
from rudder_hf.metrics.chair import CHAIR_METRICS, COLUMNS, CaptionDetail
from rudder_hf.metrics.chair_parsers import Mention
from rudder_hf.metrics.statistics import Counts, scores

SIZE = 40
BEST = Setting(1, alpha_max=3.0)
LIMITS = Limits().record(labelled=True)
REACHES, LIKELY = "its 95 % interval does not lie below 0", "its paired p-value is"


def captions(wrong: int, found: float = 3.0, twice: int = 0) -> Scored:
    """Captions about images with four objects: some have an absent one, some of those have two."""
    false = np.array([2.0] * twice + [1.0] * (wrong - twice) + [0.0] * (SIZE - wrong))
    columns = {
        "captions": np.ones(SIZE), "hallucinated_captions": false > 0, "mentions": found + false,
        "hallucinated_mentions": false, "objects": found + false, "hallucinated_objects": false,
        "truth": np.full(SIZE, 4.0), "found": np.full(SIZE, found), "words": np.full(SIZE, 30.0),
    }  # fmt: skip
    values = np.stack([np.asarray(columns[name], dtype=np.float64) for name in COLUMNS], axis=1)
    return Scored(Counts(tuple(map(str, range(SIZE))), COLUMNS, values), CHAIR_METRICS)


def choice(objective: str = "f1", best: Setting | None = BEST) -> Choice[Setting]:
    return Choice(best, objective, 0.8, 0.7, [], {}, {}, {}, [], (0.1, 0.0, 0.2))


def checked(steered: Scored, vanilla: Scored | None = None, cut: Scored | None = None) -> list[dict[str, Any]]:
    """What the held-out images say; vanilla has an absent object in half of its captions, cut or not."""
    vanilla = vanilla or captions(20)
    others = {"minus_vanilla": {BEST: vanilla}, "minus_truncated": {BEST: cut or vanilla}}
    return held_out_rows({VANILLA: vanilla, BEST: steered}, others, BEST, 500, 0)


@pytest.mark.parametrize("objective", LABELLED)
def test_what_is_shown_is_calibrated(objective: str) -> None:
    assert refusal(choice(objective), checked(captions(8)), LIMITS) == ""


@pytest.mark.parametrize(
    ("steered", "floor", "missing"),
    [
        # One absent object fewer of 20 may be luck.
        (
            captions(19),
            0.95,
            f"CHAIR_I is not shown to fall (-0.6 [-1.9, +0.0]: {REACHES} and {LIKELY} 1.000, above 0.05)",
        ),
        (
            captions(21),
            0.95,
            f"CHAIR_I is not shown to fall (+0.6 [+0.0, +1.9]: {REACHES} and {LIKELY} 1.000, above 0.05)",
        ),
        # Four images of 40, all one way: the interval of a bootstrap leaves out 0, but a coin does that once in eight.
        (captions(16), 0.95, f"CHAIR_I is not shown to fall (-2.5 [-5.2, -0.6]: {LIKELY} 0.118, above 0.05)"),
        # Nothing absent at all, but true objects are missing too.
        (captions(0, found=2.4), 0.5, "F1 falls (-5.0 ["),
        (captions(0, found=2.7), 0.95, "recall is 90.00% of vanilla's, below the floor of 95%"),
    ],
)
def test_every_reason_of_refusal_is_said(steered: Scored, floor: float, missing: str) -> None:
    refused = refusal(choice(), checked(steered), LIMITS | {"recall_floor": floor})
    assert refused.startswith(f"on the held-out images {missing}")
    assert ", and " not in refused


def test_records_without_p_values_are_judged_by_their_intervals() -> None:
    rows = checked(captions(16))
    for name in ("minus_vanilla", "minus_truncated"):
        for change in rows[1][name].values():
            del change["p_value"]
    assert refusal(choice(), rows, LIMITS) == ""


def test_a_fall_that_saying_less_explains_is_refused() -> None:
    rows = checked(captions(8, 2.9), cut=captions(9, 2.9))
    refused = refusal(choice(), rows, LIMITS)
    less = "on the held-out images CHAIR_I is not shown to fall by more than by saying less (-0.7 ["
    assert refused.startswith(less)
    assert f"] against vanilla cut to the same recall: {REACHES} and {LIKELY} " in refused
    record = choice_record(choice(), rows, LIMITS)
    assert record["refusal"] == refused
    assert record["held_out_minus_truncated"]["chair_i"]["high"] >= 0 > record["held_out"]["chair_i"]["high"]
    assert refusal(choice(), checked(captions(8, 2.9), cut=captions(16, 2.9)), LIMITS) == ""
    few = refusal(choice(), checked(captions(8, 2.9), cut=captions(12, 2.9)), LIMITS)
    assert (
        f"than by saying less (-2.9 [-5.9, -0.7] against vanilla cut to the same recall: {LIKELY} 0.098, above 0.05)"
        in few
    )
    # Said beside the first condition, but where vanilla is uncut it is that one again.
    first, second, *_ = refusal(choice(), checked(captions(19, 2.9), cut=captions(18, 2.9)), LIMITS).split(", and ")
    assert "CHAIR_I is not shown to fall (" in first
    assert second.startswith("CHAIR_I is not shown to fall by more than by saying less (")
    assert "saying less" not in refusal(choice(), checked(captions(19)), LIMITS)


@pytest.mark.parametrize(
    ("steered", "cut", "said"),
    [
        (captions(19), None, "vanilla uncut, which recalls no more: -0.6 [-1.9, +0.0], which holds 0"),
        (captions(8), None, "vanilla uncut, which recalls no more: -8.0 [-11.7, -4.6], lower"),
        (captions(30), None, "vanilla uncut, which recalls no more: +5.7 [+2.6, +9.0], worse"),
        (captions(8, 2.9), captions(9, 2.9), "which holds 0: saying less may be all of it"),
        (captions(8, 2.9), captions(12, 2.9), ": saying less may be all of it"),
        (captions(8, 2.9), captions(16, 2.9), "lower than by saying less"),
        (captions(16, 2.9), captions(8, 2.9), "worse than by saying less"),
    ],
)
def test_the_report_says_against_what(steered: Scored, cut: Scored | None, said: str) -> None:
    """A setting that recalls as much as vanilla meets vanilla uncut: saying less cannot be what it does."""
    rows = checked(steered, cut=cut)
    line = less_in_words("f1", rows[1])
    assert line.startswith("CHAIR_I against vanilla ")
    assert line.endswith(said)
    against = line.removeprefix("CHAIR_I against ").partition(": ")[0]
    record = {"held_out_images": [], "held_out_looks": 1, "settings": None, "metric": "f1"}
    table = _held_out({"record": record, "held_out": rows, "by_mode": {}, "without_labels": None})
    level = 100 * scores((cut or captions(20)).counts, CHAIR_METRICS)["chair_s"]
    assert f"\n| … {against} | {level:.1f} |" in table
    assert f"\n| … minus {against} |" in table


@pytest.mark.parametrize("cut", [None, captions(16, 2.9)])
def test_what_was_shown_is_said_in_one_sentence(cut: Scored | None) -> None:
    rows = checked(captions(8, 2.9 if cut else 3.0), cut=cut)
    record = choice_record(choice(), rows, LIMITS)
    record |= {"limits": LIMITS, "held_out_images": ["1"] * SIZE, "held_out_looks": 2}
    *_, looks, last = summary({"record": record, "held_out": rows, "by_mode": {}, "refusal": ""})
    assert looks.startswith("2 calibrations of this folder")
    less = ", also against vanilla cut to the same recall (-5." if cut else ""
    assert last.startswith("Called calibrated: on 40 held-out images CHAIR_I falls (-")
    assert (less in last) if less else ("cut" not in last)
    assert last.endswith("; look 2 of this folder at these images.")


def test_the_truncated_control_has_the_recall_of_the_setting() -> None:
    """Vanilla names three objects and then an absent one, which goes with the third."""
    names = ("cat", "dog", "bird", "boat")
    said = tuple(Mention(name, name, place) for place, name in enumerate(names))
    truth = frozenset({"cat", "dog", "bird", "horse"})
    details = tuple(CaptionDetail(image, "", said, (said[3],), truth, 30) for image in range(SIZE))
    whole = replace(captions(SIZE), details=details)
    uncut, cut = (truncated(whole, captions(SIZE, found=found)) for found in (3.0, 2.0))
    assert scores(uncut.counts, uncut.metrics)["chair_i"] == 0.25
    assert scores(cut.counts, cut.metrics) | {"recall": 0.5, "chair_i": 0.0} == scores(cut.counts, cut.metrics)


def test_all_that_is_missing_is_said_at_once() -> None:
    refused = refusal(choice(), checked(captions(20, found=2.0)), LIMITS)
    said = refused.removeprefix("on the held-out images ").split(", and ")
    shown = ["CHAIR_I is not shown to fall (", "CHAIR_I is not shown to fall by more than by saying less ("]
    assert [reason.partition("(")[0] + "(" for reason in said[:2]] == shown
    assert [reason[:16] for reason in said[2:]] == ["F1 falls (-18.5 ", "recall is 66.67%"]


def test_the_floor_itself_is_kept() -> None:
    assert refusal(choice(), checked(captions(8, found=2.85)), LIMITS) == ""
    assert "below the floor" in refusal(choice(), checked(captions(8, found=2.84)), LIMITS)


def test_the_metric_that_has_to_be_shown_is_that_of_the_objective() -> None:
    """As many captions with an absent object as before, but each with one instead of two."""
    rows = checked(captions(20), captions(20, twice=20))
    assert {name: shown_by(name).name for name in LABELLED} == {
        "f1": "chair_i", "paper": "chair_mean", "mean": "chair_mean", "chair_s": "chair_s", "chair_i": "chair_i",
    }  # fmt: skip
    refused = {name: refusal(choice(name), rows, LIMITS) for name in LABELLED}
    assert "CHAIR_S is not shown to fall (+0.0 [+0.0, +0.0]: " in refused.pop("chair_s")
    assert not any(refused.values())


def test_nothing_is_calibrated_without_choice_labels_or_held_out_images() -> None:
    assert "no setting within the limits" in refusal(choice(best=None), [], LIMITS)
    assert "no measurement of hallucination" in refusal(choice("grounding"), checked(captions(8)), LIMITS)
    assert "no held-out images" in refusal(choice(), [], LIMITS)


@pytest.mark.parametrize(("wrong", "calibrated"), [(8, True), (19, False)])
def test_config_and_card_say_what_the_verdict_says(wrong: int, calibrated: bool) -> None:
    record = choice_record(choice(), checked(captions(wrong)), LIMITS) | {"model": {"name": "org/base"}}
    assert {"f1", "precision", "recall", "chair_s", "chair_i", "repeated_mentions"} < set(record["held_out"])
    assert "repeated_mentions" in record["held_out_minus_truncated"]
    config = RudderConfig(base_model_name_or_path="org/base", calibration=record, **BEST.record())
    card = render_card(config, "org/name")
    assert Provenance(config).calibrated == calibrated
    assert ("were calibrated on this model" in card) == calibrated
    assert ("they are **not calibrated**: on the held-out images CHAIR_I is not shown to fall" in card) != calibrated
    assert ("[!WARNING]" in card) != calibrated
    assert settings_record(methods.get("rudder-beta", config=config))["calibrated"] == calibrated
    # A record does not stand for other settings or models, refused or not.
    config.alpha_max = 9.0
    assert "changed by hand" in render_card(config)


def test_the_recorded_simulation_is_what_the_page_says() -> None:
    root = Path(__file__).parent.parent.parent
    result = json.loads((root / "benchmarks" / "null-calibration.json").read_text())
    page = (root / "docs" / "calibration.md").read_text()
    assert table(result) in page.split("<!-- null calibration -->")[1].split("<!-- end of null calibration -->")[0]
    assert all(row["repetitions"] >= 400 for row in result["results"])
    assert all(row["share"] <= 0.05 for row in result["results"] if row["effect"] == "none")
    assert all(row["share"] <= 0.1 for row in result["results"] if row["effect"] == "cut")
    often = [row for row in result["results"] if row["objective"] == "f1" and row["effect"].startswith("quarter")]
    assert all(row["low"] > 0.4 for row in often)


def test_settings_without_effect_are_hardly_ever_called_calibrated() -> None:
    """36 settings on 100 + 100 images; `benchmarks/null-calibration.json` has many more repetitions."""
    assert simulate(SCENES, no_effect, CalibrationOptions(bootstrap=200), 40)["share"] <= 0.1


def test_settings_with_an_effect_mostly_are() -> None:
    assert simulate(SCENES, quarter_removed, CalibrationOptions(bootstrap=200), 20)["share"] >= 0.6
