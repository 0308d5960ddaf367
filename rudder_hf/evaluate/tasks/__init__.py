"""Tasks by name, from what users give on the command line."""

from __future__ import annotations

from collections.abc import Callable

from ...metrics.errors import InputError, listed
from .base import DataOptions, Sample, Task
from .captions import chair_task
from .questions import mme_task, pope_task
from .scenes import scenes_pope_task, scenes_task

__all__ = ["DataOptions", "Sample", "Task", "make_task"]

# The options of data that each task does not use.
_TASKS: dict[str, tuple[Callable[[DataOptions], Task], tuple[str, ...]]] = {
    "scenes": (scenes_task, ("data", "captions", "images")),
    "scenes-pope": (scenes_pope_task, ("data", "captions", "images")),
    "chair": (chair_task, ()),
    "pope": (pope_task, ("captions",)),
    "mme": (mme_task, ("captions", "images", "split")),
}


def make_task(name: str, options: DataOptions) -> Task:
    """Make a task.

    Raises:
        InputError: There is no such task, or the data do not fit it.
    """
    if name not in _TASKS:
        raise InputError(f"there is no task {name!r}; choose one of {', '.join(_TASKS)}")
    make, unused = _TASKS[name]
    given = [f"--{option}" for option in unused if getattr(options, option) is not None]
    if given:
        raise InputError(f"the task {name} does not use {listed(given)}; leave it out")
    if options.data is None and "data" not in unused:
        raise InputError(f"the task {name} needs --data; only the tasks scenes and scenes-pope need none")
    return make(options)
