"""The tests that need vLLM, in a virtual environment of its own (the README has its commands).

    python -m tests.vllm                           # every configuration, the client, the refusals
    python -m tests.vllm parity eager native-llava # some configurations
    python -m tests.vllm refusals
    python -m tests.vllm client
    python -m tests.vllm load --repeats 9

Results are JSON, one file for each part, in benchmarks/vllm; a result is replaced only when its part has ended. The
exit code is 1 if anything differs from plain transformers, or a control does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
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


def main() -> int:
    """Run parts in processes of their own, with the settings that vLLM reads when it is imported."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm", description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("all", *PARTS), default="all")
    parser.add_argument("names", nargs="*", help="configurations of parity; all if none is given")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=9, help="of load")
    parser.add_argument("--compiled", action="store_true", help="compile the models that load measures")
    parser.add_argument("--scratch", type=Path, help="keep checkpoints and expected answers here for later runs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return 0 if _run(options) else 1
    environment = {**_ENVIRONMENT, **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_SHIM, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    codes = []
    for part in PARTS[:3] if options.part == "all" else (options.part,):
        command = [sys.executable, "-m", "tests.vllm", part, *options.names, "--inside", "--out", str(options.out)]
        command += ["--repeats", str(options.repeats), *(["--compiled"] if options.compiled else [])]
        command += [] if options.scratch is None else ["--scratch", str(options.scratch)]
        if part == "client":
            # The server splits into processes, as it does in production.
            environment = {**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        codes.append(subprocess.run(command, cwd=ROOT, env=environment).returncode)
    return int(any(codes))


def _run(options: argparse.Namespace) -> bool:
    from tests.toy import words
    from tests.vllm.cases import make_cases
    from tests.vllm.checkpoints import CHECKPOINTS
    from tests.vllm.environment import versions

    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or Path(temporary)

        def checkpoint(name: str) -> Path:
            if not (scratch / name / "model.safetensors").exists():
                CHECKPOINTS[name].write(scratch / name)
            return scratch / name

        store = scratch / "expected.json"
        if options.part == "parity":
            return _parity(options, checkpoint, store)
        if options.part == "refusals":
            from tests.vllm.refusals import check_refusals

            result: dict[str, Any] = check_refusals(checkpoint("llava"))
        elif options.part == "client":
            from tests.vllm.client import compare_client

            log = options.out / "server.log"
            result = compare_client(checkpoint("llava"), make_cases(words(), 40), store, log)
        else:
            from tests.vllm.load import run_load

            result = run_load(checkpoint("llava"), words(), options.repeats, options.compiled)
        _write(options.out / f"{options.part}{'-compiled' if options.compiled else ''}.json", versions() | result)
    return bool(result.get("passed", True))


def _parity(options: argparse.Namespace, checkpoint: Any, store: Path) -> bool:
    """Every configuration in turn; a result is on disk as soon as it is there."""
    from tests.toy import words
    from tests.vllm.cases import make_cases
    from tests.vllm.checkpoints import CHECKPOINTS
    from tests.vllm.engines import CONFIGURATIONS, compare
    from tests.vllm.environment import versions

    if unknown := sorted(set(options.names) - set(CONFIGURATIONS)):
        print(f"No such configuration: {', '.join(unknown)}. There are {', '.join(CONFIGURATIONS)}.", file=sys.stderr)
        return False
    path = options.out / "parity.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"configurations": {}}
    passed = True
    for name in options.names or CONFIGURATIONS:
        configuration = CONFIGURATIONS[name]
        placeholder = CHECKPOINTS[configuration.checkpoint].placeholder
        cases = make_cases(words(), placeholder=placeholder)
        try:
            outcome = compare(configuration, checkpoint(configuration.checkpoint), cases, store)
        except Exception as error:
            outcome = {"name": name, "passed": False, "error": f"{type(error).__name__}: {error}"}
        outcome |= {"options": configuration.options, "settings": configuration.settings, **versions()}
        found["configurations"][name] = outcome
        _write(path, found)
        passed &= outcome["passed"]
        print(
            name, "passed" if outcome["passed"] else "FAILED", outcome.get("rounds", outcome.get("error")), flush=True
        )
    return passed


def _write(path: Path, result: dict[str, Any]) -> None:
    """Put a whole file in place of the old one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
