"""Throughput under load: vLLM without RUDDER, and with it at 0 %, 50 % and 100 % steered requests, taken in turns.

Both engines live in this process and take turns in an order that changes from repeat to repeat, so that whatever else
the machine does meets all of them. Ratios are taken within a repeat; CPU seconds of the process are recorded beside
seconds on the clock, because they do not count what other programs take.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rudder_hf.benchmark.costs import garbage_collector_off, round_orders, summarize
from tests.vllm.cases import Case
from tests.vllm.engines import SETTINGS, answers, engine

# Name -> share of requests that are steered; None is the engine without RUDDER.
VARIANTS: dict[str, float | None] = {"without RUDDER": None, "0 %": 0.0, "50 %": 0.5, "100 %": 1.0}


def workload(words: Sequence[str], count: int, context: int, length: int, share: float | None) -> list[Case]:
    """Requests with images, of `context` words and `length` new tokens, of which a share is steered."""
    draw = random.Random(count * 7919 + context)
    cases = []
    for number in range(count):
        steered = share is not None and (number * share) % 1.0 + share >= 1.0
        text = "<image> " + " ".join(draw.choices(words, k=context))
        # The engine without RUDDER is told nothing of it.
        cases.append(Case(text, number, length, None if steered or share is None else False))
    return cases


def measure(
    engines: dict[str, Any], batches: dict[str, list[Case]], repeats: int, seed: int = 0
) -> dict[str, list[dict[str, float]]]:
    """Seconds of each variant in each repeat, after one that does not count."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in batches}
    with garbage_collector_off():
        for repeat, order in enumerate(round_orders(repeats + 1, seed, list(batches))):
            for name in order:
                clock, cpu = time.perf_counter(), time.process_time()
                answers(engines[name], batches[name])
                taken = {"seconds": time.perf_counter() - clock, "cpu seconds": time.process_time() - cpu}
                if repeat:
                    found[name].append(taken)
            gc.collect()
    return found


def summary(found: dict[str, list[dict[str, float]]], requests: int, tokens: int) -> dict[str, Any]:
    """Rates, and medians of the ratios to the engine without RUDDER in the same repeat, with 95 % intervals."""
    base = found["without RUDDER"]
    out: dict[str, Any] = {}
    for name, runs in found.items():
        clock = statistics.median(run["seconds"] for run in runs)
        out[name] = {"requests per second": round(requests / clock, 3), "tokens per second": round(tokens / clock, 2)}
        for kind in ("seconds", "cpu seconds"):
            ratio = summarize([a[kind] / b[kind] for a, b in zip(base, runs, strict=True)])
            out[name][f"throughput ratio by {kind}"] = round(ratio.median, 4)
            out[name][f"interval by {kind}"] = [round(end, 4) for end in ratio.interval]
        out[name]["runs"] = [{kind: round(value, 4) for kind, value in run.items()} for run in runs]
    return out


def run_load(folder: Path, words: Sequence[str], repeats: int) -> dict[str, Any]:
    """Measure the mix of requests, then how the cost grows with batch and context."""
    options = {"max_num_seqs": 32, "max_model_len": 1280, "disable_log_stats": True}
    with ExitStack() as stack:
        stock = stack.enter_context(engine(folder, options, None))
        steered = stack.enter_context(engine(folder, options, SETTINGS))
        engines = {name: stock if share is None else steered for name, share in VARIANTS.items()}
        count, context, length = 32, 40, 32
        batches = {name: workload(words, count, context, length, share) for name, share in VARIANTS.items()}
        result: dict[str, Any] = {
            "requests": count,
            "words of context": context,
            "new tokens": length,
            "repeats": repeats,
            "mix": summary(measure(engines, batches, repeats), count, count * length),
        }
        result["growth"] = [
            _grown(engines, words, batch, words_of_context, max(repeats // 2, 3))
            for batch, words_of_context in ((1, 40), (8, 40), (32, 40), (8, 256), (8, 1024))
        ]
    return result


def _grown(
    engines: dict[str, Any], words: Sequence[str], batch: int, context: int, repeats: int, length: int = 32
) -> dict[str, Any]:
    pair = {"without RUDDER": None, "100 %": 1.0}
    batches = {name: workload(words, batch, context, length, share) for name, share in pair.items()}
    found = summary(measure(engines, batches, repeats), batch, batch * length)
    return {"batch": batch, "words of context": context, "new tokens": length, **found}
