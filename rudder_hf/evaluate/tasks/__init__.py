"""Tasks by name, from what users give on the command line."""

from __future__ import annotations

from collections.abc import Callable

from ...metrics.errors import InputError, listed
from .base import DataOptions, Sample, Task
from .chair import chair_task
from .mme import mme_task
from .pope import pope_task
from .scenes import scenes_pope_task, scenes_task

__all__ = ["TASKS", "DataOptions", "Sample", "Task", "make_task"]

TASKS: dict[str, Callable[[DataOptions], Task]] = {
    "scenes": scenes_task,
    "scenes-pope": scenes_pope_task,
    "chair": chair_task,
    "pope": pope_task,
    "mme": mme_task,
}
_UNUSED = {
    "scenes": ("data", "captions", "images"),
    "scenes-pope": ("data", "captions", "images"),
    "chair": (),
    "pope": ("captions",),
    "mme": ("captions", "images", "split"),
}


def make_task(name: str, options: DataOptions) -> Task:
    """Make a task.

    Raises:
        InputError: There is no such task, or the data do not fit it.
    """
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}; choose one of {', '.join(TASKS)}")
    unused = [f"--{option}" for option in _UNUSED[name] if getattr(options, option) is not None]
    if unused:
        raise InputError(f"the task {name} does not use {listed(unused)}; leave it out")
    if options.data is None and "data" not in _UNUSED[name]:
        raise InputError(f"the task {name} needs --data; only the tasks scenes and scenes-pope need none")
    return TASKS[name](options)
