"""How much faster calibration decodes a grid than running setting after setting, on the embedded model.

Both ways answer the same images under the same 36 settings (6 strengths x 6 k) at one layer, in turns, in one run:

- shared: `decode_settings`, as `rudder calibrate` uses it: an image is read once, all settings are rows of a batch.
- alone: for each setting `attach` and `generate` on a batch of images, as large as `--batch-size` says. With all
  images in one batch this is the fastest way without calibration's decoder; one image at a time is the usual loop.

Answers have to be equal, token by token. Run it:

    python benchmarks/calibration_speed.py --out benchmarks/embedded/calibration-speed.json
    python benchmarks/calibration_speed.py --limit 8 --batch-size 8 --rounds 1          # a first look
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rudder_hf import RudderConfig, attach
from rudder_hf.calibrate import (
    CalibrationOptions,
    Grid,
    Setting,
    data_source,
    decode_settings,
    find_data,
    layer_statistics,
)
from rudder_hf.evaluate.run import batches, encode_samples
from rudder_hf.runtime.answers import end_ids
from rudder_hf.runtime.environment import hardware, versions
from rudder_hf.runtime.models import LoadedModel, load_model
from rudder_hf.runtime.store import must_write_new, to_json

Answers = dict[tuple[str, Setting], tuple[int, ...]]
NEW_TOKENS = 120


class Race:
    """The two ways to answer the same images under the same settings."""

    def __init__(self, loaded: LoadedModel, limit: int, layer: int) -> None:
        self.loaded, self.layer = loaded, layer
        data = find_data(data_source(None), limit, 0)
        self.samples, self.task = data.choosing, data.task
        norm = {s.layer: s.hidden_norm for s in layer_statistics(loaded.model, [self.inputs(self.samples[:20])])}
        self.settings = Grid().settings(layer, norm[layer])

    def inputs(self, samples: list[Any]) -> dict[str, Any]:
        """What the processor makes of some images."""
        return encode_samples(self.loaded, self.task, samples)

    def shared(self, samples: list[Any]) -> Answers:
        """All settings at once."""
        found: Answers = {}
        for part in batches(samples, max(1, CalibrationOptions().batch_size // len(self.settings))):
            decoded = decode_settings(self.loaded.model, self.inputs(part), self.settings, max_new_tokens=NEW_TOKENS)
            for sample, row in zip(part, decoded, strict=True):
                found |= {(sample.id, s): a.tokens for s, a in zip(self.settings, row, strict=True)}
        return found

    def alone(self, samples: list[Any], batch: int) -> Answers:
        """Setting after setting."""
        found: Answers = {}
        ends = end_ids(self.loaded.model)
        for setting in self.settings:
            with attach(self.loaded.model, RudderConfig(**setting.record())):
                for part in batches(samples, batch):
                    inputs = self.inputs(part)
                    written = self.loaded.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
                    for sample, row in zip(part, written[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
                        stop = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
                        found[sample.id, setting] = tuple(row[:stop])
        return found


def timed(work: Any) -> tuple[Answers, dict[str, float]]:
    """What a function returns, and how long it took: on a busy machine CPU time says more than the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work()
    return answers, {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def run(race: Race, rounds: int, batch: int, single: int) -> dict[str, Any]:
    """Race in rounds, who begins taking turns, and once more one image at a time on the first images."""
    found = []
    different = total = 0
    for number in range(rounds):
        ways = {"shared": lambda: race.shared(race.samples), "alone": lambda: race.alone(race.samples, batch)}
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        results = {name: timed(ways[name]) for name in order}
        one, other = results["shared"][0], results["alone"][0]
        total += len(one)
        different += sum(one[key] != other[key] for key in one)
        found.append({name: taken for name, (_, taken) in results.items()})
        told = found[-1]["alone"]["cpu_seconds"] / found[-1]["shared"]["cpu_seconds"]
        print(f"round {number + 1}: {json.dumps(found[-1])}, {told:.2f} times", flush=True)
    ratios = [r["alone"]["cpu_seconds"] / r["shared"]["cpu_seconds"] for r in found]
    result: dict[str, Any] = {
        "images": len(race.samples), "settings": len(race.settings), "layer": race.layer, "batch": batch,
        "rounds": found, "answers": total, "different_answers": different,
        "ratio": round(statistics.median(ratios), 3), "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
    }  # fmt: skip
    if single:
        few = race.samples[:single]
        (_, fast), (_, slow) = timed(lambda: race.shared(few)), timed(lambda: race.alone(few, 1))
        ratio = slow["cpu_seconds"] / fast["cpu_seconds"]
        result["one_image_at_a_time"] = {"images": single, "shared": fast, "alone": slow, "ratio": round(ratio, 3)}
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100, help="number of images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100, help="images per batch when settings run alone")
    parser.add_argument("--single", type=int, default=2, help="images for the loop of one at a time; 0: none")
    parser.add_argument("--layer", type=int, default=None, help="default: that of the shipped settings")
    parser.add_argument("--dtype", default="float32", help="float64 rules out that rounding changes an answer")
    parser.add_argument("--out", type=Path, default=None, help="a new JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(None, given.dtype)
    layer = loaded.settings[""].layer if given.layer is None else given.layer
    result = run(Race(loaded, given.limit, layer), given.rounds, given.batch_size, given.single)
    result |= {"model": loaded.record(), "versions": versions(), "hardware": hardware()}
    low, high = result["ratio_low"], result["ratio_high"]
    print(f"{result['ratio']} times faster than batches of {given.batch_size} [{low}, {high}], in CPU time")
    if given.single:
        print(f"{result['one_image_at_a_time']['ratio']} times faster than one image at a time")
    print(f"{result['different_answers']} of {result['answers']} answers differ")
    if given.out is not None:
        must_write_new(given.out, to_json(result))
    return int(result["different_answers"] > 0)


if __name__ == "__main__":
    sys.exit(main())
