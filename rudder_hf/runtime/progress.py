"""The progress bar of every command: what is being done, how far it is, and the time left.

Functions that take long have an argument `progress: Progress = no_progress` and call `progress(text, done, total)`:
what is being done, how much of it is done, and how much there is. A bar ends at `total`; its text may change on the
way. The first call with a new text says what an earlier run has done of it. The command line passes a [`ProgressBar`].

```python
with ProgressBar(shown=process.is_main) as bar:
    reading, answering = stages(bar, ["", "scenes"])
    for prompt in followed(prompts, "prompts", reading):  # 1 of 2: prompts:  60%|██████    | 12/20 [01:32<01:01]
        ...
    for method, progress in zip(methods, consecutive(answering, [len(samples)] * len(methods))):
        run(method, samples, progress)  # 2 of 2: scenes, rudder-beta:  60%|██████    | 120/200 [01:32<01:01]
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from tqdm import tqdm

Progress = Callable[[str, int, int], None]
"""Is called with what is being done, how much of it is done, and how much there is."""
Item = TypeVar("Item")


def no_progress(text: str, done: int, total: int) -> None:
    """Report nothing."""


def stages(progress: Progress, names: Sequence[str]) -> Iterator[Progress]:
    """A `Progress` for each stage of a piece of work, with its number, unless it is the only one, before the text.

    Args:
        progress: Of the whole.
        names: Of the stages; where a name is empty, what is reported there says it all.
    """

    def stage(prefix: str) -> Progress:
        return lambda text, done, total: progress(prefix + text, done, total)

    for number, name in enumerate(names, start=1):
        place = f"{number} of {len(names)}: " if len(names) > 1 else ""
        yield stage(place + (f"{name}, " if name else ""))


def consecutive(progress: Progress, sizes: Sequence[int]) -> Iterator[Progress]:
    """A `Progress` for each of several pieces of these sizes, which are done one after the other under one bar."""

    def piece(start: int) -> Progress:
        return lambda text, done, _: progress(text, start + done, sum(sizes))

    for number in range(len(sizes)):
        yield piece(sum(sizes[:number]))


def followed(items: Sequence[Item], text: str, progress: Progress) -> Iterator[Item]:
    """The items, with a report before each and after the last."""
    for number, item in enumerate(items):
        progress(text, number, len(items))
        yield item
    progress(text, len(items), len(items))


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
        bar = self._bar
        if bar is None or total != bar.total or done < bar.n:
            self.__exit__()
            # A terminal alone gets a bar.
            form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
            options = {"leave": False, "miniters": 1, "disable": None, "bar_format": form}
            bar = self._bar = _Bar(desc=text, total=total, initial=done, **options)
        elif text != self._text and not bar.disable:
            # What an earlier run has done does not count for the time left.
            bar.initial += done - bar.n
            bar.n = bar.last_print_n = done
            bar.set_description(text)
        self._text = text
        bar.update(done - bar.n)
        if done >= total:
            bar.refresh()

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
