"""The progress bar of every command: what is being done, how far it is, and the time left.

Functions that take long have an argument `progress: Progress = no_progress` and call `progress(text, done, total)`:
what is being done, how much of it is done, and how much there is. A new text begins a new stage. The command line
passes a [`ProgressBar`].

```python
with ProgressBar(shown=process.is_main) as bar:
    analyse(..., progress=bar)  # answers ━━━━━━━━━╸━━━━ 120/200 0:01:32
```
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[str, int, int], None]
"""Is called with what is being done, how much of it is done, and how much there is."""

_SECONDS_BETWEEN = 0.1


def no_progress(text: str, done: int, total: int) -> None:
    """Report nothing."""


class ProgressBar:
    """Progress on stderr; nothing is shown where stderr is no terminal.

    There is no thread that redraws the bar: what is timed meanwhile is not disturbed.

    Args:
        shown: Whether this process may show anything.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._text, self._done, self._drawn = "", 0, 0.0
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show what is being done, how much of it is done, and how much there is."""
        if not self._shown:
            return
        if self._bar is None or text != self._text or done < self._done:
            self._begin(text, done, total)
        assert self._bar is not None
        self._done = done
        self._bar.update(self._bar.task_ids[-1], completed=done, total=total)
        now = time.monotonic()
        if done >= total or now - self._drawn >= _SECONDS_BETWEEN:
            self._bar.refresh()
            self._drawn = now

    def _begin(self, text: str, done: int, total: int) -> None:
        """Begin a stage; what an earlier run has done does not count for the time left."""
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            text_column = TextColumn("{task.description}", markup=False)
            self._bar = Progress(
                *(text_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._text = text
        self._bar.add_task(text, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
