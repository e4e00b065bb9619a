"""Ctrl-C and SIGTERM: noted while a step runs, so that the run can be saved before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Training that was asked to end by a signal, whose number is ``signal``; it says what was saved."""

    def __init__(self, number: int, message: str) -> None:
        self.signal = number
        super().__init__(message)


class Stopping:
    """The signal that asks this process to end, ``asked``, if one has come."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._waits = False

    @contextmanager
    def watching(self) -> Iterator["Stopping"]:
        """Take over the signals inside the block, where that is possible: in the main thread."""
        before: dict[signal.Signals, Any] = {}
        try:
            for number in _SIGNALS:
                before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread: its signals are not ours
            pass
        try:
            yield self
        finally:
            for taken, handler in before.items():
                signal.signal(taken, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Only note a first signal inside the block: who runs it looks at ``asked``."""
        before, self._waits = self._waits, True
        try:
            yield
        finally:
            self._waits = before

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._waits and self.asked is None:
            self.asked = number
            return
        raise Stopped(number, "stopped at once; what was saved before is whole.")
