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
from rudder_hf.calibrate import Rule
from rudder_hf.calibrate.choice import differences, images_needed, refusal, shown_by, shown_in_words
from rudder_hf.evaluate.methods import settings_record
from rudder_hf.evaluate.result import Scored
from rudder_hf.hub.card import Provenance, render_card
from rudder_hf.metrics.chair import CHAIR_METRICS, COLUMNS, CaptionDetail, Mention
from rudder_hf.metrics.statistics import Counts

SIZE = 40
SETTINGS = {"layer": 1, "alpha_max": 3.0}
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


def record(
    steered: Scored, vanilla: Scored | None = None, cut: Scored | None = None, objective: str = "f1",
    floor: float = 0.95,
) -> dict[str, Any]:  # fmt: skip
    """A record of held-out images; vanilla has an absent object in half of its captions, cut or not."""
    vanilla = vanilla or captions(20)
    found = differences([vanilla, steered], 500, 0)
    found["held_out_minus_truncated"] = differences([cut or vanilla, steered], 500, 0)["held_out"]
    limits = replace(Rule(objective), recall_floor=floor).record()
    images = [str(number) for number in range(SIZE)]
    return {"settings": SETTINGS, "metric": objective, "limits": limits, "held_out_images": images, **found}


@pytest.mark.parametrize(
    ("steered", "floor", "missing"),
    [
        # One absent object fewer of 20 may be luck.
        (
            captions(19),
            0.95,
            f"CHAIR_I does not fall significantly (-0.6 [-1.9, +0.0]: {REACHES} and {LIKELY} 1.000, above 0.05)",
        ),
        # Four images of 40, all one way: the interval of a bootstrap leaves out 0, but a coin does that once in eight.
        (captions(16), 0.95, f"CHAIR_I does not fall significantly (-2.5 [-5.2, -0.6]: {LIKELY} 0.118, above 0.05)"),
        # Nothing absent at all, but true objects are missing too.
        (captions(0, found=2.4), 0.5, "F1 falls (-5.0 ["),
        (captions(0, found=2.7), 0.95, "recall is 90.00% of vanilla's, below the floor of 95%"),
    ],
)
def test_every_reason_of_refusal_is_said(steered: Scored, floor: float, missing: str) -> None:
    refused = refusal(record(steered, floor=floor))
    assert refused.startswith(f"on the held-out images {missing}")
    assert ", and " not in refused


def test_all_that_is_missing_is_said_at_once_and_nothing_where_all_is_shown() -> None:
    said = refusal(record(captions(20, found=2.0))).removeprefix("on the held-out images ").split(", and ")
    shown = ["CHAIR_I does not fall significantly (", "CHAIR_I does not fall significantly more than by saying less ("]
    assert [reason.partition("(")[0] + "(" for reason in said[:2]] == shown
    assert [reason[:16] for reason in said[2:]] == ["F1 falls (-18.5 ", "recall is 66.67%"]
    assert refusal(record(captions(8))) == refusal(record(captions(8), objective="paper")) == ""
    assert refusal(record(captions(8, found=2.85))) == ""  # the floor itself is kept
    assert "below the floor" in refusal(record(captions(8, found=2.84)))


def test_a_refusal_says_how_many_images_would_show_the_effect() -> None:
    said = refusal(record(captions(16)))
    assert said.endswith("an effect of this size would show on about 70 held-out images")
    change = record(captions(16))["held_out"]["chair_i"]
    assert images_needed(change, SIZE) == 70
    # The interval of twice as many is narrower by the root of two; the p-value alone would ask for more here.
    assert images_needed({k: v for k, v in change.items() if k != "p_value"}, SIZE) < 70
    # What is no fall, or may be nothing but noise, no number of images is promised to show.
    for steered in (captions(21), captions(19)):
        assert "would show" not in refusal(record(steered))


def test_a_fall_that_saying_less_explains_is_refused() -> None:
    less = record(captions(8, 2.9), cut=captions(9, 2.9))
    refused = refusal(less)
    start = "on the held-out images CHAIR_I does not fall significantly more than by saying less (-0.7 ["
    assert refused.startswith(start)
    assert f"] against vanilla cut to the same recall: {REACHES} and {LIKELY} " in refused
    assert less["held_out_minus_truncated"]["chair_i"]["high"] >= 0 > less["held_out"]["chair_i"]["high"]
    shown = record(captions(8, 2.9), cut=captions(16, 2.9))
    assert refusal(shown) == ""
    assert ", also against vanilla cut to the same recall (-5." in shown_in_words(shown)
    # Said beside the first condition, but where vanilla is uncut it is that one again.
    first, second, *_ = refusal(record(captions(19, 2.9), cut=captions(18, 2.9))).split(", and ")
    assert "CHAIR_I does not fall significantly (" in first
    assert second.startswith("CHAIR_I does not fall significantly more than by saying less (")
    assert "saying less" not in refusal(record(captions(19)))
    assert "cut" not in shown_in_words(record(captions(8)))


def test_the_truncated_control_has_the_recall_of_the_setting() -> None:
    """Vanilla names three objects and then an absent one, which goes with the third."""
    names = ("cat", "dog", "bird", "boat")
    said = tuple(Mention(name, name, place, place + 1) for place, name in enumerate(names))
    truth = frozenset({"cat", "dog", "bird", "horse"})
    details = tuple(CaptionDetail(image, "", said, (said[3],), truth, 30) for image in range(SIZE))
    whole = replace(captions(SIZE), details=details)
    uncut, cut = (
        differences([whole, captions(SIZE, found=found)], 50, 0)["held_out_minus_truncated"] for found in (3.0, 2.0)
    )
    assert uncut["chair_i"]["left"] == 0.25
    assert (cut["recall"]["left"], cut["chair_i"]["left"]) == (0.5, 0.0)


def test_the_metric_that_has_to_be_shown_is_that_of_the_objective() -> None:
    """As many captions with an absent object as before, but each with one instead of two."""
    assert [shown_by(name).name for name in ("f1", "paper")] == ["chair_i", "chair_mean"]
    found = record(captions(20), captions(20, twice=20), objective="paper")
    assert found["held_out"]["chair_s"]["value"] == 0 > found["held_out"]["chair_mean"]["high"]
    assert refusal(found) == ""


def test_nothing_is_calibrated_without_choice_labels_or_held_out_images() -> None:
    shown = record(captions(8))
    assert "no setting within the limits" in refusal(shown | {"settings": None})
    assert "no measurement of hallucination" in refusal(shown | {"metric": "grounding"})
    assert "no held-out images" in refusal(shown | {"held_out": {}})


@pytest.mark.parametrize(("wrong", "calibrated"), [(8, True), (19, False)])
def test_config_and_card_say_what_the_verdict_says(wrong: int, calibrated: bool) -> None:
    found = record(captions(wrong)) | {"model": {"name": "org/base"}}
    assert {"f1", "precision", "recall", "chair_s", "chair_i", "repeated_mentions"} < set(found["held_out"])
    config = RudderConfig(base_model_name_or_path="org/base", **SETTINGS)
    config.calibration = found | {"settings": config.settings(), "refusal": refusal(found) or None}
    card = render_card(config, "org/name")
    assert Provenance(config).calibrated == calibrated
    assert ("were calibrated on this model" in card) == calibrated
    assert (
        "they are **not calibrated**: on the held-out images CHAIR_I does not fall significantly" in card
    ) != calibrated
    assert ("[!WARNING]" in card) != calibrated
    assert settings_record(methods.get("rudder-beta", config=config))["calibrated"] == calibrated


def test_the_recorded_simulation_is_what_the_page_says() -> None:
    root = Path(__file__).parent.parent.parent
    result = json.loads((root / "benchmarks" / "null-calibration.json").read_text())
    page = (root / "docs" / "calibration.md").read_text()
    assert table(result) in page.split("<!-- null calibration -->")[1].split("<!-- end of null calibration -->")[0]


@pytest.mark.parametrize(("effect", "least", "most"), [(no_effect, 0.0, 0.1), (quarter_removed, 0.4, 1.0)])
def test_few_calibrations_without_effect_pass_and_many_with_one(effect: Any, least: float, most: float) -> None:
    """On 100 + 100 images; `benchmarks/null-calibration.json` has many more repetitions."""
    assert least <= simulate(SCENES, effect, Rule(bootstrap=200), 30)["share"] <= most
