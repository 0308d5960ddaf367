"""What each decoding method costs beside vanilla: throughput, forwards and memory, on one model and prompt.

Methods run in turn within each round, in an order that is drawn anew, and ratios are taken within rounds, as for
RUDDER's own speed (`timing`). Forwards and bytes are counted in a run of their own and are the same in every run.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.backbones import find_backbone
from ..methods import Intervention
from .forwards import ForwardCount, count_forwards
from .memory import StorageLedger, allocator_peak
from .timing import Ratio, garbage_collector_off, summarize
from .variants import VANILLA, endless, prompt_length, synchronize

FORMAT = "rudder-costs-1"
BEAMS = {"greedy": 1, "beam": 5}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class CostSettings:
    """How to measure.

    Attributes:
        new_tokens: Length of every answer.
        rounds: Timed rounds.
        warmup: Rounds before them that do not count.
        num_beams: Of the decoding "beam".
        seed: Of the order within rounds.
    """

    new_tokens: int = 64
    rounds: int = 10
    warmup: int = 1
    num_beams: int = BEAMS["beam"]
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        for name, least in {"new_tokens": 2, "rounds": 1, "warmup": 0, "num_beams": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but has to be at least {least}.")

    def beams(self, decoding: str) -> int:
        """Number of beams of a decoding."""
        return self.num_beams if decoding == "beam" else 1


@dataclass(frozen=True)
class CostRun:
    """One timed `generate`.

    Attributes:
        round: Index of the round.
        method: What ran.
        decoding: "greedy" or "beam".
        seconds: Wall time; opening the method is not part of it, what it does in each call is.
        cpu_seconds: Time that the process spent on CPUs.
    """

    round: int
    method: str
    decoding: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class MethodCost:
    """What one method costs under one decoding.

    Attributes:
        method: Its label.
        decoding: "greedy" or "beam".
        refusal: Why it cannot decode so; empty if it can. Then there are no numbers.
        ms_per_token: Median wall time per new token and prompt.
        ratio: Throughput relative to vanilla under the same decoding; None for vanilla.
        cpu_ratio: The same by CPU time.
        forwards_per_token: Positions forwarded after the prompt, relative to vanilla's for an answer of this length.
        prompt_forwards: Positions forwarded of prompts, relative to vanilla's.
        peak_bytes: Most bytes of tensors alive at a time, weights and inputs left out; on CUDA by the allocator.
        peak_ratio: The same relative to vanilla's.
    """

    method: str
    decoding: str
    refusal: str = ""
    ms_per_token: float | None = None
    ratio: Ratio | None = None
    cpu_ratio: Ratio | None = None
    forwards_per_token: float | None = None
    prompt_forwards: float | None = None
    peak_bytes: int | None = None
    peak_ratio: float | None = None

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> MethodCost:
        """Read what `asdict` wrote."""
        ratios = {
            name: None
            if record[name] is None
            else Ratio(**{**record[name], "interval": tuple(record[name]["interval"])})
            for name in ("ratio", "cpu_ratio")
        }
        return cls(**{**record, **ratios})


@dataclass(frozen=True)
class CostReport:
    """Costs of several methods on one model.

    Attributes:
        created: When, in UTC.
        model: Description of the model.
        prompt_tokens: Length of the prompt.
        batch_size: Number of prompts.
        settings: How it was measured.
        costs: One entry for each method and decoding.
        runs: All timed runs.
        versions: Of Python and packages.
        hardware: The machine.
        format: Version of this layout.
    """

    created: str
    model: dict[str, Any]
    prompt_tokens: int
    batch_size: int
    settings: dict[str, Any]
    costs: list[MethodCost]
    runs: list[CostRun]
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    format: str = FORMAT

    def to_json(self) -> str:
        """The text of the result file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> CostReport:
        """Read a report.

        Raises:
            ValueError: The file is none.
        """
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} holds no costs of methods ({FORMAT}).")
        costs = [MethodCost.from_dict(entry) for entry in record["costs"]]
        return cls(**{**record, "costs": costs, "runs": [CostRun(**entry) for entry in record["runs"]]})


def measure_costs(
    model: Any,
    methods: Mapping[str, Intervention],
    inputs: dict[str, Any],
    decodings: Mapping[str, Sequence[str]],
    settings: CostSettings | None = None,
    progress: Progress | None = None,
) -> tuple[list[MethodCost], list[CostRun]]:
    """Measure methods on one batch of prompts.

    Args:
        model: The stock model.
        methods: By label; "vanilla" is what the others are compared with.
        inputs: Of `generate`.
        decodings: For "greedy" and "beam" the labels to measure; vanilla is always measured.
        settings: How to measure.
        progress: Is told what is being done.

    Raises:
        ValueError: There is no vanilla, or no such decoding.
    """
    settings, say = settings or CostSettings(), progress or (lambda text: None)
    if VANILLA not in methods:
        raise ValueError("Costs are relative to vanilla's: add the method 'vanilla'.")
    if unknown := set(decodings) - set(BEAMS):
        raise ValueError(f"Costs are measured for {', '.join(BEAMS)}, not for {', '.join(sorted(unknown))}.")
    costs: list[MethodCost] = []
    runs: list[CostRun] = []
    for decoding, labels in decodings.items():
        bench = _Bench(model, inputs, decoding, settings)
        wanted = {label: methods[label] for label in dict.fromkeys((VANILLA, *labels))}
        refusals = {label: method.refuses(decoding) for label, method in wanted.items()}
        allowed = {label: method for label, method in wanted.items() if not refusals[label]}
        counted = {}
        for label, method in allowed.items():
            say(f"{decoding}: counting {label}")
            counted[label] = bench.count(method)
        timed = bench.time(allowed, say)
        runs += timed
        for label, reason in refusals.items():
            costs.append(MethodCost(label, decoding, reason) if reason else bench.cost(label, timed, counted))
    return costs, runs


class _Bench:
    """One model, one batch of prompts, one decoding."""

    def __init__(self, model: Any, inputs: dict[str, Any], decoding: str, settings: CostSettings) -> None:
        self.model, self.inputs, self.decoding, self.settings = model, inputs, decoding, settings
        self.batch = int(inputs["input_ids"].shape[0])
        self.backbone = find_backbone(model)

    def answer(self, generate: Callable[..., Any]) -> None:
        """Answers of exactly the wanted length."""
        new = self.settings.new_tokens
        sequences: Tensor = generate(
            **self.inputs,
            max_new_tokens=new,
            do_sample=False,
            num_beams=self.settings.beams(self.decoding),
            sample_ids=[f"prompt {row}" for row in range(self.batch)],
        )
        if sequences.shape[1] not in (new, prompt_length(self.inputs) + new):
            raise RuntimeError(
                f"An answer has {sequences.shape[1]} tokens, not the {new} new ones that were asked for."
            )

    def count(self, method: Intervention) -> tuple[ForwardCount, int]:
        """Forwards and the peak of bytes of one call."""
        ledger = StorageLedger()
        gc.collect()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(endless(self.model))
            generate = stack.enter_context(method.applied(self.model))
            stack.enter_context(garbage_collector_off())
            count = stack.enter_context(count_forwards(self.backbone))
            allocated = stack.enter_context(allocator_peak(self.model.device))
            with ledger:
                self.answer(generate)
        return count, allocated[0] if allocated else ledger.peak

    def time(self, methods: Mapping[str, Intervention], say: Progress) -> list[CostRun]:
        """Every method once per round."""
        runs: list[CostRun] = []
        orders = shuffled_orders(self.settings.warmup + self.settings.rounds, self.settings.seed, list(methods))
        with endless(self.model), garbage_collector_off():
            for index, order in enumerate(orders):
                number = index - self.settings.warmup
                say(f"{self.decoding}: round {number + 1} of {self.settings.rounds}" if number >= 0 else "warm-up")
                for label in order:
                    seconds, cpu = self._time_one(methods[label])
                    if number >= 0:
                        runs.append(CostRun(number, label, self.decoding, seconds, cpu))
                gc.collect()
        return runs

    def _time_one(self, method: Intervention) -> tuple[float, float]:
        device = self.model.device
        with torch.no_grad(), method.applied(self.model) as generate:
            synchronize(device)
            cpu, start = time.process_time(), time.perf_counter()
            self.answer(generate)
            synchronize(device)
            return time.perf_counter() - start, time.process_time() - cpu

    def cost(self, label: str, runs: Sequence[CostRun], counted: Mapping[str, tuple[ForwardCount, int]]) -> MethodCost:
        """Put together what was measured of one method."""
        count, peak = counted[label]
        base, base_peak = counted[VANILLA]
        own = [run.seconds for run in runs if run.method == label]
        ratios = {
            clock: None if label == VANILLA else summarize(ratios_to_vanilla(runs, label, clock))
            for clock in ("seconds", "cpu_seconds")
        }
        return MethodCost(
            method=label,
            decoding=self.decoding,
            ms_per_token=1e3 * statistics.median(own) / (self.settings.new_tokens * self.batch),
            ratio=ratios["seconds"],
            cpu_ratio=ratios["cpu_seconds"],
            forwards_per_token=count.answer / base.answer,
            prompt_forwards=count.prompt / base.prompt,
            peak_bytes=peak,
            peak_ratio=peak / base_peak,
        )


def shuffled_orders(rounds: int, seed: int, names: Sequence[str]) -> list[list[str]]:
    """An order for each round: a drawn one, and then the same backwards, so that nobody is always early."""
    source = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < rounds:
        order = source.sample(list(names), len(names))
        orders += [order, order[::-1]]
    return orders[:rounds]


def ratios_to_vanilla(runs: Sequence[CostRun], label: str, clock: str = "seconds") -> list[float]:
    """Throughput relative to vanilla in each round."""
    times = {(run.round, run.method): float(getattr(run, clock)) for run in runs}
    return [times[number, VANILLA] / times[number, label] for number in sorted({run.round for run in runs})]
