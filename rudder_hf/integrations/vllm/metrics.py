"""Metrics beside vLLM's own, at `/metrics` and `LLM.get_metrics()`: what was steered, and with which settings.

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
REQUESTS, INFO = "vllm:rudder_requests", "vllm:rudder_info"


def show_metrics(info: dict[str, str]) -> None:
    """Make the metrics part of what this process answers, and known to processes that it starts.

    Args:
        info: The labels of `INFO`.
    """
    if _OF_VLLM not in os.environ:
        if _OWN not in os.environ:
            os.environ[_OWN] = tempfile.mkdtemp(prefix="rudder-metrics-")
            atexit.register(_remove, os.environ[_OWN], os.getpid())
        _collect(os.environ[_OWN])
    # The counters are there from the beginning, at zero.
    for outcome in OUTCOMES:
        count(outcome, 0)
    key = mmap_key(INFO, INFO, tuple(info), tuple(info.values()), "1, with the settings of the engine as labels.")
    _file("gauge_max", os.getpid()).write_value(key, 1.0, 0.0)


def count(outcome: str, more: int = 1) -> None:
    """Add to the number of requests with one of `OUTCOMES`."""
    counters, key = _file("counter", os.getpid()), _key(outcome)
    counters.write_value(key, counters.read_value(key)[0] + more, 0.0)


@cache
def _file(kind: str, process: int) -> MmapedDict:
    """Open a file of a process: prometheus_client tells the kind of its metrics by its name."""
    return MmapedDict(os.path.join(os.environ.get(_OF_VLLM) or os.environ[_OWN], f"{kind}_rudder{process}.db"))


@cache
def _key(outcome: str) -> Any:
    told = "Requests by what RUDDER did with them."
    return mmap_key(REQUESTS, f"{REQUESTS}_total", ("outcome",), (outcome,), told)


@cache
def _collect(folder: str) -> None:
    MultiProcessCollector(REGISTRY, path=folder)


def _remove(folder: str, owner: int) -> None:
    # A process that was forked from the owner leaves it alone.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
