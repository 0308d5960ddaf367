"""The progress bar of every command: what is being done, how far it is, and the time left.

Functions that take long have an argument `progress: Progress = no_progress` and call `progress(text, done, total)`:
what is being done, how much of it is done, and how much there is. A new text begins a new stage. The command line
passes a [`ProgressBar`].

```python
with ProgressBar(shown=process.is_main) as bar:
    analyse(..., progress=bar)  # answers:  60%|██████    | 120/200 [01:32<01:01]
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from tqdm import tqdm

Progress = Callable[[str, int, int], None]
"""Is called with what is being done, how much of it is done, and how much there is."""


def no_progress(text: str, done: int, total: int) -> None:
    """Report nothing."""


class _Bar(tqdm):  # type: ignore[type-arg]
    # No thread that redraws bars: what is timed meanwhile is not disturbed.
    monitor_interval = 0


class ProgressBar:
    """Progress on stderr; nothing is shown where stderr is no terminal, and nothing is left when it ends.

    Args:
        shown: Whether this process may show anything.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown, self._text = shown, ""
        self._bar: _Bar | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show what is being done, how much of it is done, and how much there is."""
        if not self._shown:
            return
        if self._bar is None or (text, total) != (self._text, self._bar.total) or done < self._bar.n:
            self.__exit__()
            # What an earlier run has done does not count for the time left. A terminal alone gets a bar.
            form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
            options = {"leave": False, "miniters": 1, "disable": None, "bar_format": form}
            self._text, self._bar = text, _Bar(desc=text, total=total, initial=done, **options)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.refresh()

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
