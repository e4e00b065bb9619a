"""A block of lines at the bottom of a terminal, redrawn in place below everything that is printed meanwhile."""

import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any, TextIO

Lines = Callable[[int], list[str]]
"""Gives the lines of a section for a terminal with so many columns."""
DONE, LEFT = "━", "─"
"""What bars are drawn with; a terminal that can't show these gets ``PLAIN_BARS``."""
PLAIN_BARS = {DONE: "#", LEFT: "-"}
_COLOURS = ((DONE, "36"), (LEFT, "90"))
_USUAL = os.terminal_size((80, 24))


class Live:
    """Sections of lines below everything that is printed to stdout and stderr while the block is shown.

    The cursor stays visible at the start of the line below the block, so an interrupted program leaves the terminal
    as it should be. A line is never wider than the terminal. After the terminal became narrower, its lines are assumed
    to be wrapped, as most terminals do.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        self._sections: list[Lines] = []
        self._drawn: list[str] = []
        self._redirections = ExitStack()
        can_show = _can_show(terminal)
        self._in_colour = can_show and not os.environ.get("NO_COLOR")
        self._bars = {} if can_show else str.maketrans(PLAIN_BARS)

    def add(self, section: Lines) -> None:
        """Show a section below the others; with the first one, printed lines begin to appear above the block."""
        if not self._sections:
            if sys.stdout.isatty():
                self._redirections.enter_context(redirect_stdout(_Above(self, sys.stdout)))
            self._redirections.enter_context(redirect_stderr(_Above(self, self.terminal)))
        self._sections.append(section)

    def remove(self, section: Lines) -> None:
        """Show a section no longer; after the last one nothing of the block is left."""
        self._sections.remove(section)
        self.draw()
        if not self._sections:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._redirections.close()

    def draw(self) -> None:
        """Redraw the block."""
        columns, rows = _size(self.terminal)
        start = self._start(columns)
        lines = [line for section in self._sections for line in section(columns - 1)]
        self._drawn = [line[: columns - 1].translate(self._bars) for line in lines[: max(1, rows - 1)]]
        self.terminal.write(start + "".join(f"{self._coloured(line)}\x1b[K\n" for line in self._drawn) + "\x1b[J")
        self.terminal.flush()

    def above(self, text: str, stream: TextIO) -> None:
        """Write whole lines to a stream, above the block."""
        self.terminal.write(self._start(_size(self.terminal).columns) + "\x1b[J")
        self.terminal.flush()
        self._drawn = []
        stream.write(text)
        stream.flush()
        self.draw()

    def _start(self, columns: int) -> str:
        """Move the cursor to the start of the block."""
        rows = sum(max(1, -(-len(line) // columns)) for line in self._drawn)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _coloured(self, line: str) -> str:
        if self._in_colour:
            for character, colour in _COLOURS:
                line = re.sub(f"{character}+", f"\x1b[{colour}m\\g<0>\x1b[0m", line)
        return line


class _Above(io.TextIOBase):
    """Stands in for stdout or stderr while a block is shown: whole lines are printed above it."""

    def __init__(self, live: Live, stream: TextIO) -> None:
        self.live, self._stream, self._begun = live, stream, ""

    def write(self, text: str) -> int:
        """Print the lines that are complete, and keep the rest until it is."""
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self.live.above("".join(f"{line}\n" for line in lines), self._stream)
        return len(text)

    def flush(self) -> None:
        """Print the rest if the block is gone."""
        if self._begun and not self.live._sections:
            self._stream.write(self._begun)
            self._begun = ""
        self._stream.flush()

    def isatty(self) -> bool:
        """True: only a terminal is replaced."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the terminal."""
        return self._stream.encoding

    def fileno(self) -> int:
        """The number of the terminal's file."""
        return self._stream.fileno()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)


def live_block() -> Live | None:
    """The block at the bottom of the terminal that stderr is, with the sections shown there now; None in a log."""
    if isinstance(sys.stderr, _Above):
        return sys.stderr.live
    is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Live(sys.stderr) if is_terminal else None


def _size(terminal: TextIO) -> os.terminal_size:
    """Columns and rows of a terminal."""
    try:
        size = os.get_terminal_size(terminal.fileno())
    except OSError:  # a stand-in for a terminal, without a file
        return _USUAL
    return size if size.columns > 1 else _USUAL  # a serial line may say zero


def _can_show(terminal: TextIO) -> bool:
    try:
        (DONE + LEFT).encode(terminal.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
