"""Tasks: what the model is asked about which images, and what the answers are scored against."""

from .base import DataOptions, Sample, Task, make_task

__all__ = ["DataOptions", "Sample", "Task", "make_task"]
