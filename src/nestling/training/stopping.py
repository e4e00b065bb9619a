"""Ctrl-C and SIGTERM: recorded while a step runs, so that the run can be saved before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Training was ended by the signal with number ``signal``; the message says what was saved."""

    def __init__(self, number: int, message: str) -> None:
        self.signal = number
        super().__init__(message)


class Stopping:
    """``signal`` is the number of the signal that asks this process to end, None if there was none."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._waits = False

    @contextmanager
    def watching(self) -> Iterator["Stopping"]:
        """Handle the signals within the ``with`` statement, if this is the main thread."""
        before: dict[signal.Signals, Any] = {}
        try:
            for number in _SIGNALS:
                before[number] = signal.signal(number, self._on_signal)
        except ValueError:  # not the main thread, and only that one can handle signals
            pass
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the ``with`` statement only record a first signal in ``signal``; its code must look there."""
        before, self._waits = self._waits, True
        try:
            yield
        finally:
            self._waits = before

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._waits and self.signal is None:
            self.signal = number
            return
        raise Stopped(number, "stopped at once; what was saved before is whole.")
