"""Progress of every command: a bar on a terminal; elsewhere, as in a cluster's log, a plain line a minute.

Functions that take long have an argument `progress: Progress = no_progress` and call `progress(text, done, total)`.
The command line passes a [`ProgressBar`].
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from tqdm import tqdm

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
Item = TypeVar("Item")
LINE_SECONDS = 60.0
"""Seconds between two lines where stderr is no terminal."""


def no_progress(text: str, done: int, total: int) -> None:
    """Report nothing."""


def followed(items: Sequence[Item], text: str, progress: Progress) -> Iterator[Item]:
    """Yield the items, with a report before each and after the last."""
    for number, item in enumerate(items):
        progress(text, number, len(items))
        yield item
    progress(text, len(items), len(items))


class _Bar(tqdm):  # type: ignore[type-arg]
    # No thread that redraws bars: it would disturb timings.
    monitor_interval = 0


class ProgressBar:
    """Progress on stderr; the bar is removed when it ends.

    Args:
        shown: Whether this process shows anything.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown, self._terminal = shown, sys.stderr.isatty()
        self._bar: _Bar | None = None
        self._total, self._first, self._begun, self._said = -1, 0, 0.0, 0.0

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show what is being done, how much of it is done, and how much there is."""
        if not self._shown:
            return
        now = time.monotonic()
        if total != self._total or done < self._first:
            # The time left does not count what an earlier run has done.
            self._total, self._first, self._begun, self._said = total, done, now, now
            self.__exit__()
            if self._terminal:
                form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
                self._bar = _Bar(desc=text, total=total, initial=done, leave=False, miniters=1, bar_format=form)
        if self._bar is not None:
            self._bar.set_description(text, refresh=False)
            self._bar.update(done - self._bar.n)
            if done == total:
                self._bar.refresh()
        elif now - self._said >= LINE_SECONDS and done > self._first:
            self._said = now
            left = (now - self._begun) / (done - self._first) * (total - done)
            print(f"{text}: {done} of {total}, about {left / 60:.0f} minutes left", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
