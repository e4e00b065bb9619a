"""Shows the progress of long work: a bar on a terminal, plain lines elsewhere, nothing on a silent rank."""

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


class Progress:
    """A bar over ``total`` steps with room for a few figures; printed lines appear above the bar."""

    def __init__(self, total: int, what: str, *, done: int = 0, shown: bool = True) -> None:
        self._shown = shown
        on_terminal = shown and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, desc=what, disable=not on_terminal, leave=False, dynamic_ncols=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.close()

    def step(self, **figures: str) -> None:
        """Advance the bar by one step."""
        if not self._bar.disable:
            if figures:
                self._bar.set_postfix(figures, refresh=False)
            self._bar.update()

    def go_to(self, done: int) -> None:
        """Set the number of finished steps, which may be smaller than before."""
        if not self._bar.disable:
            self._bar.n = done
            self._bar.refresh()

    def say(self, line: str) -> None:
        """Print a line."""
        if self._shown:
            with self._bar.external_write_mode(file=sys.stderr):
                print(line, file=sys.stderr, flush=True)


def watched(items: Iterable[T], what: str, *, total: int | None = None) -> Iterator[T]:
    """Items one by one, with a bar on a terminal."""
    yield from tqdm(items, desc=what, total=total, disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True)
