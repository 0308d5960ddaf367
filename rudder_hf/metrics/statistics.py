"""Scores from counts, their bootstrap intervals, and paired comparisons on the same samples.

Every score here is a function of sums over samples: CHAIR_I is the sum of hallucinated mentions over the sum of
mentions. So a task hands over one row of counts per sample (`Counts`), and a `Metric` says what to make of the sums.
Drawing samples again then is one matrix product for all metrics and thousands of draws.

```python
interval(counts, CHAIR_METRICS)["chair_s"]  # Estimate(value=0.48, low=0.44, high=0.52)
compare(vanilla, steered, CHAIR_METRICS)["chair_s"]  # Difference(left=..., right=..., value=..., p_value=...)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import InputError, listed

Floats = NDArray[np.float64]
Sums = Mapping[str, Floats]
Unit = Literal["percent", "points", "words", "nats"]

SAMPLES = 10_000
_BLOCK_ENTRIES = 4_000_000  # entries of one block of drawn weights: bounds the memory, whatever the number of samples


@dataclass(frozen=True)
class Metric:
    """A named score of summed counts.

    `compute` maps sums by column (arrays of any one shape) to scores of that shape. Scores of unit "percent" are
    fractions; tables show them times 100. `higher_is_better` is None for a score that is only descriptive.
    """

    name: str
    label: str
    compute: Callable[[Sums], Floats]
    higher_is_better: bool | None
    unit: Unit = "percent"


@dataclass(frozen=True)
class Counts:
    """One row of counts per sample; `ids` name the samples and pair two runs."""

    ids: tuple[str, ...]
    columns: tuple[str, ...]
    values: Floats  # (samples, columns)

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.ids), len(self.columns)):
            raise InputError(
                f"counts of shape {self.values.shape} do not fit {len(self.ids)} samples, {len(self.columns)} columns"
            )
        if len(set(self.ids)) != len(self.ids):
            twice = sorted({i for i in self.ids if self.ids.count(i) > 1})
            raise InputError(f"samples counted twice: {listed(twice)}")

    def total(self) -> dict[str, Floats]:
        """The sum of every column."""
        return _by_column(self.values.sum(0), self.columns)

    def ordered(self, ids: Sequence[str]) -> Counts:
        """The same counts with their rows in the order of `ids`."""
        place = {sample: row for row, sample in enumerate(self.ids)}
        return replace(self, ids=tuple(ids), values=self.values[[place[i] for i in ids]])

    def only(self, columns: Sequence[str]) -> Counts:
        """The same samples with some of the columns."""
        return replace(self, columns=tuple(columns), values=self.values[:, [self.columns.index(c) for c in columns]])

    def joined(self, other: Counts) -> Counts:
        """The columns of both, for the same samples: CHAIR and fluency of one run, say."""
        check_same_samples(self, other)
        both = set(self.columns) & set(other.columns)
        if both:
            raise InputError(f"both counts have the columns {listed(sorted(both))}")
        values = np.concatenate([self.values, other.ordered(self.ids).values], axis=1)
        return Counts(self.ids, self.columns + other.columns, values)


@dataclass(frozen=True)
class Estimate:
    """A score with its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A score of two runs on the same samples: right minus left, its paired interval and permutation p-value."""

    left: float
    right: float
    value: float
    low: float
    high: float
    p_value: float


def share(part: str, whole: str) -> Callable[[Sums], Floats]:
    """The metric part / whole; nothing counted gives 0."""
    return lambda sums: ratio(sums[part], sums[whole])


def ratio(part: Floats, whole: Floats) -> Floats:
    """The quotient part / whole, and 0 where whole is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole != 0)


def f1(precision: Floats, recall: Floats) -> Floats:
    """The harmonic mean, and 0 where both are 0."""
    return ratio(2 * precision * recall, precision + recall)


def scores(counts: Counts, metrics: Sequence[Metric]) -> dict[str, float]:
    """Every metric on all samples."""
    sums = counts.total()
    return {metric.name: float(metric.compute(sums)) for metric in metrics}


def interval(counts: Counts, metrics: Sequence[Metric], samples: int = SAMPLES, seed: int = 0) -> dict[str, Estimate]:
    """Every metric with its 95 % percentile bootstrap interval over samples."""
    _check_draws(counts, samples)
    drawn = _gathered(
        _computed(weights @ counts.values, counts.columns, metrics)
        for weights in bootstrap_weights(len(counts.ids), samples, seed)
    )
    values = scores(counts, metrics)
    return {name: Estimate(values[name], *percentile_interval(draws)) for name, draws in drawn.items()}


def compare(
    left: Counts, right: Counts, metrics: Sequence[Metric], samples: int = SAMPLES, seed: int = 0
) -> dict[str, Difference]:
    """Right minus left for every metric, on the same samples.

    The interval is a paired 95 % percentile bootstrap: both runs are drawn with the same samples. The two-sided
    p-value comes from a permutation test that swaps the two runs' rows sample by sample; it is never 0, because the
    observed assignment counts as one of the permutations.
    """
    check_same_samples(left, right)
    if left.columns != right.columns:
        raise InputError("the two runs count different things; compare runs of one task")
    _check_draws(left, samples)
    ids = sorted(left.ids)
    left, right = left.ordered(ids), right.ordered(ids)
    one, two, change = left.values, right.values, right.values - left.values

    def differences(left_sums: Floats, right_sums: Floats) -> dict[str, Floats]:
        before, after = (_computed(sums, left.columns, metrics) for sums in (left_sums, right_sums))
        return {name: after[name] - before[name] for name in after}

    drawn = _gathered(differences(w @ one, w @ two) for w in bootstrap_weights(len(ids), samples, seed))
    moves = (swaps @ change for swaps in _swap_weights(len(ids), samples, seed + 1))
    swapped = _gathered(differences(one.sum(0) + moved, two.sum(0) - moved) for moved in moves)
    first, second = scores(left, metrics), scores(right, metrics)
    result = {}
    for name, draws in drawn.items():
        value = second[name] - first[name]
        # Equal up to rounding counts as equally far: sums in another order may differ in the last bit.
        extreme = np.abs(swapped[name]) >= abs(value) - 1e-12 * max(1.0, abs(value))
        p_value = (1 + int(extreme.sum())) / (1 + samples)
        result[name] = Difference(first[name], second[name], value, *percentile_interval(draws), p_value)
    return result


def percentile_interval(draws: Floats) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def _computed(sums: Floats, columns: tuple[str, ...], metrics: Sequence[Metric]) -> dict[str, Floats]:
    """Every metric of sums by draw and column."""
    by_column = _by_column(sums, columns)
    return {metric.name: metric.compute(by_column) for metric in metrics}


def _gathered(blocks: Iterable[dict[str, Floats]]) -> dict[str, Floats]:
    """Blocks of draws joined, by metric."""
    parts = list(blocks)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _by_column(sums: Floats, columns: tuple[str, ...]) -> dict[str, Floats]:
    return {column: sums[..., place] for place, column in enumerate(columns)}


def _blocks(size: int, samples: int) -> Iterator[int]:
    block = max(1, _BLOCK_ENTRIES // max(size, 1))
    for start in range(0, samples, block):
        yield min(block, samples - start)


def bootstrap_weights(size: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each of `size` samples is drawn, for `samples` draws with replacement, in blocks of rows."""
    random = np.random.default_rng(seed)
    for block in _blocks(size, samples):
        drawn = random.integers(size, size=(block, size))
        drawn += np.arange(block)[:, None] * size
        yield np.bincount(drawn.ravel(), minlength=block * size).reshape(block, size).astype(np.float64)


def _swap_weights(size: int, samples: int, seed: int) -> Iterator[Floats]:
    random = np.random.default_rng(seed)
    for block in _blocks(size, samples):
        yield random.integers(2, size=(block, size)).astype(np.float64)


def _check_draws(counts: Counts, samples: int) -> None:
    if not counts.ids:
        raise InputError("no sample to score")
    if samples < 1:
        raise InputError(f"samples is {samples}; draw at least one")


def check_same_samples(left: Counts, right: Counts) -> None:
    """See that two runs have the same samples, in whatever order."""
    only = sorted(set(left.ids) ^ set(right.ids))
    if only:
        raise InputError(
            f"the two runs do not have the same samples: {len(only)} are in one only ({listed(only)}); "
            "compare runs on the same images"
        )
