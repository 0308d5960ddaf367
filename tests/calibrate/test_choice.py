"""The rules of calibration: limits, the choice against a slow reference, ties, certainty, early stopping."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rudder_hf import RudderConfig
from rudder_hf.calibrate import VANILLA, CalibrationOptions, Grid, Limits, Setting
from rudder_hf.calibrate.choice import LABELLED, OBJECTIVES, Choice, hopeless, looks, student_quantile
from rudder_hf.calibrate.choice import choose as choose_in_order
from rudder_hf.calibrate.outcome import judge_label_free
from rudder_hf.calibrate.run import finalists
from rudder_hf.calibrate.settings import neighbours
from rudder_hf.metrics.errors import InputError
from rudder_hf.metrics.statistics import Counts

COLUMNS = (
    "captions", "hallucinated_captions", "mentions", "hallucinated_mentions", "objects", "truth", "found", "words",
    "answers", "sequences_2", "distinct_2", "log_likelihood", "tokens",
)  # fmt: skip


def table(**columns: list[float]) -> Counts:
    """Counts with given columns, the others harmless."""
    size = len(next(iter(columns.values())))
    harmless = dict.fromkeys(COLUMNS, [1.0] * size) | {
        "log_likelihood": [-1.0] * size,
        "hallucinated_mentions": [0.0] * size,
    }
    values = np.asarray([(harmless | columns)[name] for name in COLUMNS], dtype=np.float64).T
    return Counts(tuple(map(str, range(size))), COLUMNS, values)


def candidate(alpha: float, k: float = 5.0, layer: int = 1) -> Setting:
    return Setting(layer, alpha_max=alpha, k=k)


def choose(candidates: dict[Setting, Counts], *rules: Any, **more: Any) -> Choice[Setting]:
    """The choice among settings, the gentlest first as `calibrate` lists them."""
    ordered = sorted(candidates, key=lambda setting: setting.gentleness)
    return choose_in_order({setting: candidates[setting] for setting in ordered}, *rules, **more)


columns = st.fixed_dictionaries(
    {
        "hallucinated_captions": st.lists(st.integers(0, 1), min_size=6, max_size=6),
        "found": st.lists(st.integers(0, 3), min_size=6, max_size=6),
        "distinct_2": st.lists(st.integers(5, 10), min_size=6, max_size=6),
        "log_likelihood": st.lists(st.integers(-9, -1), min_size=6, max_size=6),
    }
).map(lambda c: {**c, "truth": [3.0] * 6, "sequences_2": [10.0] * 6, "tokens": [10.0] * 6})


@hypothesis_settings(max_examples=60, deadline=None)
@given(columns, st.lists(columns, min_size=1, max_size=6))
def test_choice_equals_a_slow_reference(vanilla: dict[str, list[float]], others: list[dict[str, list[float]]]) -> None:
    limits = Limits(recall_floor=0.9, nll_rise=0.2, distinct_drop=0.1)
    candidates = {candidate(float(number + 1)): other for number, other in enumerate(others)}

    def allowed(c: dict[str, list[float]]) -> bool:
        return (
            sum(c["found"]) >= 0.9 * sum(vanilla["found"]) - 1e-9
            and -sum(c["log_likelihood"]) / 60 <= -sum(vanilla["log_likelihood"]) / 60 + 0.2 + 1e-9
            and sum(c["distinct_2"]) / 60 >= sum(vanilla["distinct_2"]) / 60 - 0.1 - 1e-9
        )

    best, least = None, sum(vanilla["hallucinated_captions"])
    for key, c in candidates.items():  # gentlest first, so only a strictly better one replaces it
        if allowed(c) and sum(c["hallucinated_captions"]) < least:
            best, least = key, sum(c["hallucinated_captions"])
    choice = choose({key: table(**c) for key, c in candidates.items()}, table(**vanilla), "chair_s", limits, True, 50)
    assert choice.best == best
    assert choice.score == pytest.approx(least / 6)
    assert set(choice.feasible) == {key for key, c in candidates.items() if allowed(c)}
    assert set(choice.broken) == set(candidates) - set(choice.feasible)
    assert sum(choice.wins.values()) == pytest.approx(1)


def test_f1_finds_the_gentler_setting_that_the_least_chair_passes_over() -> None:
    """Few hallucinations bought with recall, down to the floor, against fewer hallucinations at the same recall."""
    size, truth = 60, [4.0] * 60

    def said(true: float, false: float, few: int) -> Counts:
        """So many true and false objects in a caption, one true one fewer in some."""
        found = [true - 1] * few + [true] * (size - few)
        named = [each + false for each in found]
        return table(
            hallucinated_captions=[float(false > 0)] * size, mentions=named, hallucinated_mentions=[false] * size,
            objects=named, found=found, truth=truth,
        )  # fmt: skip

    vanilla, gentle, harsh = said(3.0, 1.0, 0), said(3.0, 0.5, 0), said(3.0, 0.45, 9)
    tried = {candidate(1.0): gentle, candidate(2.0): harsh}
    chosen = {name: choose(tried, vanilla, name, Limits(), True, 50) for name in LABELLED}
    assert chosen["f1"].best == candidate(1.0)
    assert chosen["paper"].best == chosen["mean"].best == chosen["chair_i"].best == candidate(2.0)
    assert OBJECTIVES["paper"] is OBJECTIVES["mean"]
    # Scores are as everybody writes them, also where more is better.
    assert chosen["f1"].vanilla == pytest.approx(2 * 0.75 * 0.75 / (0.75 + 0.75))
    assert chosen["f1"].score == pytest.approx(2 * (3 / 3.5) * 0.75 / (3 / 3.5 + 0.75))
    assert chosen["f1"].out_of_bag[1] > 0 > chosen["paper"].out_of_bag[2]
    # A setting that is worse in F1 is no choice, however little it says that is wrong.
    assert choose({candidate(2.0): said(2.9, 0.7, 0)}, vanilla, "f1", Limits(), True, 50).best == candidate(2.0)
    assert choose({candidate(2.0): said(2.86, 0.95, 0)}, vanilla, "f1", Limits(), True, 50).best is None


def test_ties_go_to_the_gentler_setting() -> None:
    vanilla, better = table(hallucinated_captions=[1.0] * 8), table(hallucinated_captions=[0.0] * 8)
    tied = {candidate(9.0): better, candidate(3.0, k=8.0): better, candidate(3.0, k=2.0): better}
    choice = choose(tied, vanilla, "chair_s", Limits(), True, 100)
    assert choice.best == candidate(3.0, k=2.0)
    assert choice.wins == {candidate(3.0, k=2.0): 1.0}
    assert set(choice.plateau) == set(tied) - {choice.best}


def test_among_equals_the_gate_goes_before_the_constant_push() -> None:
    vanilla, better = table(hallucinated_captions=[1.0] * 8), table(hallucinated_captions=[0.0] * 8)
    tied = {Setting(layer, alpha_max=3.0, k=2.0, mode=mode): better for mode in ("add", "beta") for layer in (4, 1)}
    assert choose(tied, vanilla, "chair_s", Limits(), True, 50).best == candidate(3.0, k=2.0)


def test_finalists_are_the_choice_those_that_come_next_and_the_best_by_other_rules() -> None:
    counts = {candidate(float(a)): table(hallucinated_captions=[1.0] * a + [0.0] * (8 - a)) for a in range(1, 8)}
    counts[VANILLA] = table(hallucinated_captions=[1.0] * 4 + [0.0] * 4)
    steered = {c: found for c, found in counts.items() if c != VANILLA}
    first = choose(steered, counts[VANILLA], "chair_s", Limits(), True, 50)
    strong = {c: found for c, found in steered.items() if c.alpha_max > 2}
    other = choose(strong, counts[VANILLA], "chair_s", Limits(), True, 50)
    assert finalists([first, other], counts, 1) == [candidate(1.0), candidate(2.0), candidate(3.0)]
    assert finalists([first], counts, 9) == [candidate(1.0), candidate(2.0), candidate(3.0)]  # the rest is no better
    weak = {candidate(7.0): counts[candidate(7.0)]}
    assert finalists([choose(weak, counts[VANILLA], "chair_s", Limits(), True, 50)], counts, 2) == []


def test_the_choice_without_labels_is_judged_by_the_one_with_labels() -> None:
    def setting(wrong: int, grounding: float, found: float = 1.0) -> Counts:
        counts = table(hallucinated_captions=[1.0] * wrong + [0.0] * (10 - wrong), found=[found] * 10)
        return counts.joined(Counts(counts.ids, ("contrast",), np.full((10, 1), -1.0 - grounding)))

    def evidence(counts: dict[Setting, Counts]) -> dict[str, Any]:
        vanilla = counts[VANILLA]
        steered = {c: found for c, found in counts.items() if c != VANILLA}
        labelled = choose(steered, vanilla, "chair_s", Limits(), True, 20)
        free = choose(steered, vanilla, "grounding", Limits(), False, 20)
        return judge_label_free(counts, labelled, free, Limits())

    counts = {VANILLA: setting(8, 0.1), candidate(1.0): setting(4, 0.3), candidate(2.0): setting(3, 0.4)}
    good = evidence({**counts, candidate(3.0): setting(2, 0.6)})
    assert good["same_choice"]
    assert good["good_enough"]
    assert good["share_of_gain"] == 1
    half = evidence({**counts, candidate(3.0): setting(5, 0.6)})
    assert half["share_of_gain"] == pytest.approx(3 / 5)
    assert not half["good_enough"]
    deaf = evidence({**counts, candidate(3.0): setting(3, 0.6, found=0.5)})
    assert deaf["recall"] == 0.5
    assert not deaf["good_enough"]


def test_certainty_tells_a_clear_choice_from_a_lucky_one() -> None:
    random = np.random.default_rng(0)
    vanilla = table(hallucinated_captions=list(random.integers(0, 2, 80).astype(float)))
    clear = {candidate(1.0): table(hallucinated_captions=[0.0] * 80)}
    sure = choose(clear, vanilla, "chair_s", Limits(), True, 300)
    assert sure.wins[candidate(1.0)] == 1.0
    assert sure.out_of_bag[2] < -0.3  # the whole interval is a gain
    # Twenty settings that are as good as vanilla: the best of them looks better, but not out of the bag.
    lucky = {
        candidate(a): table(hallucinated_captions=list(random.integers(0, 2, 80).astype(float))) for a in range(1, 21)
    }
    unsure = choose(lucky, vanilla, "chair_s", Limits(), True, 300)
    assert unsure.score < unsure.vanilla - 0.03
    assert max(unsure.wins.values()) < 0.9
    assert unsure.out_of_bag[2] > -0.02
    assert abs(unsure.out_of_bag[0]) < unsure.vanilla - unsure.score


def test_limits_have_to_be_kept_safely() -> None:
    """The best score lies at the edge of the recall floor; with confidence the one behind the edge is chosen."""
    size = 60
    vanilla = table(hallucinated_captions=[1.0] * size, found=[2.0] * size, truth=[3.0] * size)
    edge = [2.0] * (size - 6) + [1.0] * 6  # 114 of 120: exactly 95 %
    at_edge = table(hallucinated_captions=[0.0] * size, found=edge, truth=[3.0] * size)
    behind = table(hallucinated_captions=[0.0] * 50 + [1.0] * 10, found=[2.0] * size, truth=[3.0] * size)
    candidates = {candidate(2.0): at_edge, candidate(1.0): behind}
    daring = choose(candidates, vanilla, "chair_s", Limits(), True, 400)
    assert daring.best == candidate(2.0)
    safe = choose(candidates, vanilla, "chair_s", Limits(), True, 400, confidence=0.8)
    assert safe.best == candidate(1.0)
    assert 0.4 < safe.unsafe[candidate(2.0)] < 0.8
    assert not safe.broken
    # Nor may it win a draw in which it happens to keep the limits.
    assert daring.wins[candidate(2.0)] > 0.4
    assert safe.wins == {candidate(1.0): 1.0}


def test_the_plateau_holds_what_cannot_be_told_from_the_choice() -> None:
    size = 60
    vanilla = table(hallucinated_captions=[1.0] * size, found=[2.0] * size, truth=[3.0] * size)

    def setting(wrong: int, found: float = 2.0) -> Counts:
        hallucinated = [1.0] * wrong + [0.0] * (size - wrong)
        return table(hallucinated_captions=hallucinated, found=[found] * size, truth=[3.0] * size)

    # One more hallucination than the best is within its luck, twenty more are not; the last one breaks a limit.
    tried = {candidate(1.0): 10, candidate(2.0): 11, candidate(3.0): 30}
    candidates = {each: setting(wrong) for each, wrong in tried.items()} | {candidate(4.0): setting(11, found=1.0)}
    choice = choose(candidates, vanilla, "chair_s", Limits(), True, 400)
    assert choice.best == candidate(1.0)
    assert choice.feasible == list(tried)
    assert choice.plateau == [candidate(2.0)]


def test_nothing_better_than_vanilla_is_no_choice() -> None:
    worse = {candidate(1.0): table(hallucinated_captions=[1.0] * 5)}
    choice = choose(worse, table(hallucinated_captions=[0.0] * 5), "chair_s", Limits(), True, 50)
    assert choice.best is None
    assert choice.wins == {None: 1.0}


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"), [(0.99, 19, 2.5395), (0.995, 29, 2.7564), (0.975, 99, 1.9842)]
)
def test_student_quantile(probability: float, freedom: int, expected: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=2e-3)
    assert student_quantile(probability, 10**9) == pytest.approx(NormalDist().inv_cdf(probability))


def simulated(recall_loss: float, random: np.random.Generator, size: int) -> tuple[Counts, Counts]:
    """Vanilla finds 70 % of three objects in each image; a setting loses some of them."""
    found = random.binomial(3, 0.7, size)
    lost = random.binomial(found, recall_loss)
    truth = [3.0] * size
    return table(found=list(found - lost), truth=truth), table(found=list(found), truth=truth)


def stopped(counts: Counts, vanilla: Counts, total: int) -> bool:
    return any(hopeless(head(counts, stop), head(vanilla, stop), Limits(), True, total) for stop in looks(total))


def head(counts: Counts, size: int) -> Counts:
    return Counts(counts.ids[:size], counts.columns, counts.values[:size])


def test_settings_without_a_chance_are_stopped_and_others_hardly_ever() -> None:
    """The rule's promise: of the settings that meet the floor on all images, about 1 % are stopped wrongly."""
    random = np.random.default_rng(1)
    wrongly = meeting = caught = hopeless_ones = 0
    for _ in range(1500):
        counts, vanilla = simulated(0.05, random, 100)  # right at the floor: the hardest case
        if counts.total()["found"] >= 0.95 * vanilla.total()["found"]:
            meeting += 1
            wrongly += stopped(counts, vanilla, 100)
    for _ in range(100):
        counts, vanilla = simulated(0.3, random, 100)
        hopeless_ones += 1
        caught += stopped(counts, vanilla, 100)
    assert meeting > 500
    assert wrongly / meeting < 0.02
    assert caught / hopeless_ones > 0.95


def test_looks_come_after_enough_images() -> None:
    assert looks(100) == [25, 50, 75]
    assert looks(30) == [22]
    assert looks(10) == []


def test_grid_is_relative_to_the_hidden_state() -> None:
    grid = Grid(strengths=(0.5, 0.1), k=(2.0, 5.0), modes=("beta", "add"))
    settings = grid.settings(1, 80.0)
    assert {s.alpha_max for s in settings} == {8.0, 40.0}
    assert settings[0].alpha_max == 8.0
    assert len(settings) == 2 * (2 + 1)  # mode "add" has no k
    assert {s.layer for s in settings} == {1}
    assert set(neighbours(candidate(8.0, k=2.0), settings)) == {candidate(8.0, k=5.0), candidate(40.0, k=2.0)}


def test_bad_limits_and_grids_are_refused() -> None:
    with pytest.raises(InputError, match="recall_floor is 95"):
        Limits(recall_floor=95)
    with pytest.raises(InputError, match="no k"):
        Grid(k=())
    with pytest.raises(InputError, match="strength 0"):
        Grid(strengths=(0.0, 1.0))
    with pytest.raises(InputError, match="choose one of f1, paper, mean, chair_s"):
        CalibrationOptions(objective="chair")
    for wrong in ({"confidence": 1.0}, {"shortlist": 0}, {"probe": -1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            CalibrationOptions(**wrong)  # type: ignore[arg-type]


def test_settings_describe_themselves() -> None:
    assert VANILLA.describe() == "vanilla"
    assert Setting(7, alpha_max=3.0, k=2.0, pool="norm").describe() == "layer 7, alpha_max 3, k 2, pool norm"
    assert Setting.of(candidate(3.0).record()) == Setting.of(RudderConfig(**candidate(3.0).record())) == candidate(3.0)
