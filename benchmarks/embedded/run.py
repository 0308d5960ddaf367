"""Measure models that were trained on the scenes: calibrate, compare with every peer, confirm on fresh scenes.

    python benchmarks/embedded/run.py --out runs llava=FOLDER llava-1=FOLDER llava-2=FOLDER idefics2=FOLDER
    python benchmarks/embedded/run.py --out runs --collect benchmarks/embedded

FOLDER is what `python -m tools.train_scenes` wrote. Each model gets a folder below `--out`, in which the commands of
`steps` are run one after the other; each prints itself and goes on where it was when this program is started again.
Several models can be measured at the same time by several processes, each started with other names. `--collect` joins
what is finished into one JSON file for each model, which `tables.py` makes tables of.

No step chooses anything on the scenes that it is judged by: settings are chosen on `calibration`, called calibrated by
`evaluation3`, and judged by `evaluation` and `evaluation2`, 1000 scenes that nothing was chosen on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rudder_hf.compare import Comparison
from rudder_hf.evaluate.folder import RunFolder
from rudder_hf.evaluate.result import EvaluationResult
from rudder_hf.evaluate.scoring import Scored, Scoring, build_result, score_run
from rudder_hf.methods import CONTROL_OF, GROUPS, method_class
from rudder_hf.runtime.environment import CODE, versions
from rudder_hf.runtime.store import read_json, to_json

CALIBRATE = (
    "calibrate --model embedded:model --limit 300 --check-data embedded:evaluation3 --check-limit 500 --mode beta,add "
    "--span prompt,text --strengths 0.1,0.2,0.3,0.45 --k 2,5,8 --probe 100 --out calibration"
)
COMPARE = (
    "compare --model embedded:model --limit 500 --beam-limit 100 --pope-limit 60 --tune-limit 300 "
    "--tune-beam-limit 15 --batch-size 100 --out comparison"
)
EVALUATE = "evaluate --model embedded:model --batch-size 100 --no-likelihood"
RUDDER = "vanilla,rudder-beta,rudder-add"
STEPS = "steps.json"
# The splits of fresh scenes, and what is judged by both of them: every method that decodes greedily,
# RUDDER by the paper's rule, and RUDDER with as many settings to choose from as its peers had.
SPLITS = ("evaluation", "evaluation2")
FRESH = ("fresh", "fresh-paper", "fresh-tuned")
RUDDER_SETTINGS = ("layer", "alpha_max", "k", "span", "pool")
# Which methods the fresh scenes tell apart, the first minus the second: RUDDER and its peers with as many settings to
# choose from, RUDDER and its controls with the same settings.
PEERS, CONTROLS = GROUPS["peers"], [name for name, method in CONTROL_OF.items() if method == "rudder-beta"]
TUNED = "rudder-beta, one of eight"
DUELS = (
    *((TUNED, other) for other in (*PEERS, "contrast")),
    *(("rudder-beta", other) for other in (*CONTROLS, "rudder-add", TUNED, "pai")),
    *(("contrast", other) for other in (*PEERS, "rudder-beta")),
    ("rudder-beta+contrast", "contrast"),
)


class Model:
    """The measurements of one model, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, Any] = read_json(folder / STEPS) if (folder / STEPS).exists() else {}

    def rudder(self, name: str, command: str, *more: str) -> str:
        """Run a command of rudder unless it is done; returns the folder that it says it wrote to."""
        arguments = [*command.split(), *more]
        if self.done.get(name, {}).get("arguments") != arguments:
            print(f"{self.folder.name}: rudder {' '.join(arguments)}", flush=True)
            started = time.perf_counter()
            command_line = [sys.executable, "-m", "rudder_hf", *arguments]
            printed = subprocess.run(command_line, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True)
            written = printed.stdout.rsplit("Written to ", 1)[1].split("\n")[0]
            seconds = round(time.perf_counter() - started, 1)
            code = versions()[CODE]
            self.done[name] = {"arguments": arguments, "written": written, "seconds": seconds, "code": code}
            (self.folder / STEPS).write_text(to_json(self.done))
        return str(self.done[name]["written"])

    def measure(self) -> None:
        """All steps."""
        chosen = self.rudder("calibration", CALIBRATE, "--check", "pope")
        # By the paper's rule, among the same settings.
        layers = read_json(self.folder / chosen / "calibration.json")["shortlist"]["layers"]
        same = ("--layers", ",".join(map(str, layers)))
        by_paper = self.rudder("calibration-paper", CALIBRATE, "--objective", "paper", *same)
        for mode, name in (("beta", "rudder"), ("add", "rudder-add")):
            shutil.copytree(self.folder / chosen / mode, self.folder / "model" / name, dirs_exist_ok=True)
        self.rudder("comparison", COMPARE)
        comparison = Comparison.load(self.folder / "comparison" / "comparison.json")
        self.evaluate("fresh", best_settings(comparison))
        found = {f"rudder-{mode}": settings_of(self.folder / by_paper / mode) for mode in ("beta", "add")}
        other_images = dict.fromkeys(("rudder-shuffled", "rudder-mean"), found["rudder-beta"])
        self.evaluate("fresh-paper", found | other_images)
        self.evaluate("fresh-tuned", tuned_rudder(comparison))
        first = f"{EVALUATE} --task scenes-pope --limit 200 --methods {RUDDER}"
        self.rudder("pope", f"{first} --out pope")
        self.rudder("pope-first", f"{first} --set steer_first_token=true --out pope-first")

    def evaluate(self, name: str, settings: dict[str, dict[str, Any]]) -> None:
        """Caption the scenes of both splits with vanilla and with methods, given their settings."""
        for split in SPLITS:
            out = f"{name}-{split}"
            chosen = ("--methods", ",".join(["vanilla", *settings]), *set_options(settings))
            self.rudder(out, f"{EVALUATE} --split {split} --out {out}", *chosen)


def settings_of(folder: Path) -> dict[str, Any]:
    """RUDDER's settings in a folder, as `--set` takes them."""
    config = read_json(folder / "config.json")
    return {name: config[name] for name in RUDDER_SETTINGS}


def best_settings(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """What each method is confirmed with: RUDDER as calibrated, others as tuned if there is anything better.

    Controls of the contrast get its tuned settings, as RUDDER's controls have RUDDER's.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in comparison.rows:
        if row.decoding != "greedy" or not row.metrics or row.method == "vanilla":
            continue
        if row.variant == "tuned" and row.method not in GROUPS["rudder"]:
            # VTI's directions are found anew.
            taken = {field.name for field in fields(method_class(row.method))} - {"directions"}  # type: ignore[arg-type]
            found[row.method] = {name: value for name, value in row.settings.items() if name in taken}
        else:
            found.setdefault(row.method, {})
    return {name: found["contrast"] if CONTROL_OF.get(name) == "contrast" else own for name, own in found.items()}


def tuned_rudder(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """RUDDER with the settings that were chosen among as many as its peers had, where any was better than vanilla."""
    return {
        row.method: {name: row.settings[name] for name in RUDDER_SETTINGS}
        for row in comparison.rows
        if row.method in GROUPS["rudder"] and (row.variant, row.decoding) == ("tuned", "greedy") and row.metrics
    }


def set_options(settings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Settings by method as options of `rudder evaluate`."""
    for method, own in settings.items():
        for name, value in own.items():
            yield from ("--set", f"{method}.{name}={json.dumps(value)}")


def fresh_results(folder: Path) -> dict[str, Any]:
    """What was judged by the scenes of both splits: each of `FRESH`, and pairs of methods that are to be told apart.

    The splits share no scene, so that together they are one set of twice the size. CHAIR_S and F1 of each split are
    kept too.
    """
    numbers: dict[str, Any] = {}
    scored: dict[str, dict[str, Scored]] = {}
    scoring = Scoring()
    for rule in FRESH:
        runs = [RunFolder(folder / f"{rule}-{split}") for split in SPLITS]
        plan, samples = runs[0].plan(), [sample for run in runs for sample in run.questions()]
        rows = [row for run in runs for row in run.rows()]
        result = build_result(plan, samples, rows, scoring, {"splits": SPLITS, "versions": versions()})
        scored[rule] = score_run(plan, samples, rows, scoring)
        splits = {split: EvaluationResult.load(run.path) for split, run in zip(SPLITS, runs, strict=True)}
        numbers[rule] = {
            "result": asdict(result),
            "splits": {
                split: {
                    method.name: {metric: asdict(method.differences[metric]) for metric in ("chair_s", "f1")}
                    for method in alone.methods[1:]
                }
                for split, alone in splits.items()
            },
        }
    found = scored["fresh"] | ({TUNED: one} if (one := scored["fresh-tuned"].get("rudder-beta")) else {})
    numbers["fresh"]["duels"] = {
        f"{first} minus {second}": {
            metric: asdict(change)
            for metric, change in found[first].minus(found[second], scoring.bootstrap, plan["seed"]).items()
        }
        for first, second in DUELS
        if first in found and second in found
    }
    return numbers


def collect(folder: Path, out: Path) -> None:
    """Write what was measured of a model, all numbers in one file."""
    steps = read_json(folder / STEPS)
    calibrations = {
        objective: {
            mode: read_json(folder / steps[name]["written"] / mode / "config.json")["calibration"]
            for mode in ("beta", "add")
        }
        for objective, name in (("f1", "calibration"), ("paper", "calibration-paper"))
    }
    numbers = {"vanilla": read_json(folder / "model" / "metrics.json"), "calibration": calibrations, "steps": steps}
    if {"pope-first", *(f"{rule}-{split}" for rule in FRESH for split in SPLITS)} <= steps.keys():
        found = read_json(folder / "comparison" / "comparison.json")
        numbers |= {"comparison": found} | fresh_results(folder)
        numbers |= {name: read_json(folder / name / "result.json") for name in ("pope", "pope-first")}
    else:
        print(f"{folder.name}: not finished, so that only its calibrations are written")
    (out / f"{folder.name}.json").write_text(json.dumps(numbers, separators=(",", ":"), sort_keys=True) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="NAME=FOLDER", help="models that tools.train_scenes made")
    parser.add_argument("--out", type=Path, required=True, help="where measurements are kept, new or continued")
    parser.add_argument("--collect", type=Path, help="write the results of all finished models here")
    arguments = parser.parse_args()
    for given in arguments.models:
        name, _, source = given.partition("=")
        model = arguments.out / name / "model"
        if not model.exists():
            shutil.copytree(source, model, ignore=shutil.ignore_patterns("rudder*", "checkpoints"))
        Model(arguments.out / name).measure()
    if arguments.collect:
        for path in sorted(arguments.out.glob(f"*/{STEPS}")):
            collect(path.parent, arguments.collect)


if __name__ == "__main__":
    main()
