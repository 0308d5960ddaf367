"""How many requests and answer tokens were steered: counters beside vLLM's own, at `/metrics` and `LLM.get_metrics()`.

The engine's process counts, and the server's process is asked. prometheus_client keeps counters of several processes
in files of a folder and adds them up. vLLM has such a folder when it runs several API servers; otherwise RUDDER makes
one of its own, which the processes that are started later find by their environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

_OF_VLLM = "PROMETHEUS_MULTIPROC_DIR"
_OWN = "RUDDER_METRICS_DIR"
# What becomes of a request: steered, unsteered because it (or the engine's default) says so, unsteered for want of an
# image, refused for its settings.
OUTCOMES = ("steered", "unsteered", "no_image", "refused")
REQUESTS, TOKENS = "vllm:rudder_requests", "vllm:rudder_tokens"
_HELP = {
    REQUESTS: "Requests by what RUDDER did with them.",
    TOKENS: "Answer tokens of ended requests by what RUDDER did with these.",
}


def show_counters() -> None:
    """Make the counters part of what this process answers, and known to processes that it starts."""
    if _OF_VLLM not in os.environ:
        if _OWN not in os.environ:
            os.environ[_OWN] = tempfile.mkdtemp(prefix="rudder-metrics-")
            atexit.register(_remove, os.environ[_OWN], os.getpid())
        _collect(os.environ[_OWN])
    # The counters are there from the beginning, at zero.
    _counters(os.getpid())


def count(name: str, outcome: str, more: int = 1) -> None:
    """Add to the counter `REQUESTS` or `TOKENS` of one of `OUTCOMES`."""
    counters, key = _counters(os.getpid()), _key(name, outcome)
    counters.write_value(key, counters.read_value(key)[0] + more, 0.0)


@cache
def _counters(process: int) -> MmapedDict:
    """The file of a process: prometheus_client tells the kind of its counters by its name."""
    folder = os.environ.get(_OF_VLLM) or os.environ[_OWN]
    counters = MmapedDict(os.path.join(folder, f"counter_rudder{process}.db"))
    for name in _HELP:
        for outcome in OUTCOMES:
            counters.read_value(_key(name, outcome))
    return counters


@cache
def _key(name: str, outcome: str) -> Any:
    return mmap_key(name, f"{name}_total", ("outcome",), (outcome,), _HELP[name])


@cache
def _collect(folder: str) -> None:
    MultiProcessCollector(REGISTRY, path=folder)


def _remove(folder: str, owner: int) -> None:
    # A process that was forked from the owner leaves it alone.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
