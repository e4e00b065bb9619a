"""Shows the progress of long work: a live block of lines on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

from nestling.training.live import DONE, LEFT, live_block

SECONDS_BETWEEN = 0.1
"""The least time between two drawings."""
_LONGEST_BAR, _SHORTEST_BAR = 32, 8


class Progress:
    """A bar over ``total`` steps with the time left, a few figures and any lines below; nothing if not ``shown``.

    ``step`` is the word for a step. With ``at_most`` fewer steps than ``total`` may be enough. Printed lines appear
    above; where there is no terminal, only they appear.
    """

    def __init__(
        self, total: int, what: str, *, done: int = 0, step: str = "step", at_most: bool = False, shown: bool = True
    ) -> None:
        self.total, self.what, self.at_most = total, what, at_most
        self._done, self._step, self._shown = done, step, shown
        self._first, self._began, self._drawn = done, time.monotonic(), 0.0
        self._figures: dict[str, str] = {}
        self._below: list[str] = []
        self._live = live_block() if shown else None

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.add(self._lines)
            self._live.draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.remove(self._lines)

    @property
    def is_live(self) -> bool:
        """Whether it is shown on a terminal."""
        return self._live is not None

    def step(self, **figures: str) -> None:
        """Advance by one step, and show its figures."""
        self._done += 1
        self._figures = figures
        self._draw()

    def go_to(self, done: int) -> None:
        """Set the number of finished steps, which may be smaller than before."""
        self._first += done - self._done  # the time they took says nothing of the steps to come
        self._done = done
        self._draw()

    def below(self, text: str) -> None:
        """Show lines below the bar, in place of earlier ones."""
        self._below = text.splitlines()
        self._draw()

    def say(self, line: str) -> None:
        """Print a line."""
        if self._shown:
            print(line, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._drawn >= SECONDS_BETWEEN:
            self._drawn = now
            self._live.draw()

    def _lines(self, columns: int) -> list[str]:
        bound = "at most " if self.at_most else ""
        figures = "  ".join(f"{name} {value}" for name, value in self._figures.items())
        counted = f"{self._step} {self._done:,} of {bound}{self.total:,}"
        left = self._seconds_left()
        words = [counted] if left is None else [counted, f"{bound}{clock(left)} left"]
        room = min(_LONGEST_BAR, columns - len("  ".join([self.what, "", *words])))
        bar = [_bar(self._done, self.total, room)] if room >= _SHORTEST_BAR else []
        return ["  ".join([self.what, *bar, *words]), *([figures] if figures else []), *self._below]

    def _seconds_left(self) -> float | None:
        """The time that the rest takes at the speed so far; None before the first step."""
        taken = self._done - self._first
        if taken < 1:
            return None
        return (time.monotonic() - self._began) / taken * max(0, self.total - self._done)


def clock(seconds: float) -> str:
    """A duration as a clock shows it: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(done: int, total: int, length: int) -> str:
    filled = length if not total else min(length, length * done // total)
    return DONE * filled + LEFT * (length - filled)
