"""The tests that need vLLM, in a virtual environment of its own (benchmarks/vllm/README.md has its commands).

    python -m tests.vllm                           # every configuration, the client, the refusals
    python -m tests.vllm parity eager native-llava # some configurations
    python -m tests.vllm refusals
    python -m tests.vllm client
    python -m tests.vllm load --repeats 9
    python -m tests.vllm table                     # puts the recorded results into benchmarks/vllm/README.md

Results are JSON, one file for each part and release of vLLM, in benchmarks/vllm; a result is replaced only when its
part has ended. A run that was stopped goes on where it was: what has passed with the same code and versions is not run
again, except by --again. The exit code is 1 if anything differs from plain transformers, or a control does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "vllm"
_SHIM = str(Path(__file__).parent / "shim")
# One process, few threads, nothing from the network.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    "OMP_NUM_THREADS": "1",
}
PARTS = ("parity", "refusals", "client", "load")
_FIRST = "expected"


def main() -> int:
    """Run parts in processes of their own, with the settings that vLLM reads when it is imported."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm", description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("all", *PARTS, _FIRST, "table"), default="all")
    parser.add_argument("names", nargs="*", help="configurations of parity; all if none is given")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=9, help="of load")
    parser.add_argument("--again", action="store_true", help="also what has passed already")
    parser.add_argument("--scratch", type=Path, help="keep checkpoints and expected answers here for later runs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "table":
        from tests.vllm.records import put_tables

        put_tables()
        return 0
    if options.inside:
        return 0 if _run(options) else 1
    environment = {**_ENVIRONMENT, **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_SHIM, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    parts = PARTS[:3] if options.part == "all" else (options.part,)
    with tempfile.TemporaryDirectory() as temporary:
        shared = [*options.names, "--inside", "--out", str(options.out), "--repeats", str(options.repeats)]
        shared += ["--scratch", str(options.scratch or temporary), *(["--again"] if options.again else [])]
        codes = []
        for part in parts if "parity" not in parts else (_FIRST, *parts):
            # The server splits into processes, as it does in production.
            split = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} if part == "client" else {}
            command = [sys.executable, "-m", "tests.vllm", part, *shared]
            codes.append(subprocess.run(command, cwd=ROOT, env=environment | split).returncode)
    return int(any(codes))


def _run(options: argparse.Namespace) -> bool:
    from tests.support.toy import words
    from tests.vllm.cases import make_cases
    from tests.vllm.checkpoints import CHECKPOINTS
    from tests.vllm.records import release

    options.out.mkdir(parents=True, exist_ok=True)

    def checkpoint(name: str) -> Path:
        folder: Path = options.scratch / name
        if not (folder / "processor_config.json").exists():
            CHECKPOINTS[name].write(folder)
        return folder

    store = options.scratch / "expected.json"
    if options.part in ("parity", _FIRST):
        return _parity(options, checkpoint, store)
    path = options.out / f"{options.part}-{release()}.json"
    if path.exists() and options.part in ("refusals", "client") and _holds(json.loads(path.read_text()), options):
        print(f"{path.name}: passed with this code")
        return True
    if options.part == "refusals":
        from tests.vllm.refusals import check_refusals

        result: dict[str, Any] = check_refusals(checkpoint("llava"))
    elif options.part == "client":
        from tests.vllm.client import compare_client

        cases = make_cases(words(), 40)
        result = compare_client(checkpoint("llava"), cases, store, options.scratch / "server.log")
    else:
        from tests.vllm.load import run_load

        result = run_load(checkpoint("llava"), words(), options.repeats)
    _write(path, _stamp() | result)
    print(json.dumps({name: value for name, value in result.items() if name != "said"}))
    return bool(result.get("passed", True))


def _stamp() -> dict[str, Any]:
    """What a result holds for."""
    from tests.vllm.records import code, versions

    return {**versions(), **code()}


def _holds(result: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a recorded result has passed with the present code and versions, and need not be run again."""
    stamp = _stamp()
    return bool(result.get("passed")) and not options.again and {name: result.get(name) for name in stamp} == stamp


def _parity(options: argparse.Namespace, checkpoint: Any, store: Path) -> bool:
    """Every configuration in turn; a result is on disk as soon as it is there."""
    from tests.support.toy import words
    from tests.vllm.engines import CONFIGURATIONS, compare, wanted
    from tests.vllm.records import release

    if unknown := sorted(set(options.names) - set(CONFIGURATIONS)):
        print(f"No such configuration: {', '.join(unknown)}. There are {', '.join(CONFIGURATIONS)}.", file=sys.stderr)
        return False
    path = options.out / f"parity-{release()}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"configurations": {}}
    passed = True
    for name in options.names or CONFIGURATIONS:
        if _holds(found["configurations"].get(name, {}), options):
            continue
        configuration = CONFIGURATIONS[name]
        folder = checkpoint(configuration.checkpoint)
        want = wanted(configuration, folder, configuration.cases(words()), store)
        if options.part == _FIRST:
            continue
        try:
            outcome = compare(configuration, folder, want)
        except Exception as error:
            traceback.print_exc()
            outcome = {"name": name, "passed": False, "error": f"{type(error).__name__}: {error}"}
        outcome |= {"options": configuration.options, "settings": configuration.settings, **_stamp()}
        known = {**found["configurations"], name: outcome}
        found["configurations"] = {name: known[name] for name in CONFIGURATIONS if name in known}
        _write(path, found)
        passed &= outcome["passed"]
        verdict = "passed" if outcome["passed"] else "FAILED"
        print(name, verdict, outcome.get("rounds", outcome.get("error")), outcome.get("proof"), flush=True)
    return passed


def _write(path: Path, result: dict[str, Any]) -> None:
    """Put a whole file in place of the old one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
