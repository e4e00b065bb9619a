"""What a terminal shows while something runs, as a model of a terminal (pyte) has it."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyte
import pytest

from effort import PATIENCE
from nestling.training import live
from nestling.training.progress import Progress, clock


class Terminal(io.StringIO):
    """A terminal as a stream: what is written appears on its screen."""

    encoding = "utf-8"

    def __init__(self, columns=60, rows=12):
        super().__init__()
        self.written = ""
        self._open(columns, rows)

    def _open(self, columns, rows):
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        self.screen.set_mode(pyte.modes.LNM)  # a line feed also returns, as the driver of a terminal has it
        self._stream = pyte.Stream(self.screen)

    def isatty(self):
        return True

    def write(self, text):
        self.written += text
        self._stream.feed(text)
        return len(text)

    def resize(self, columns):
        """Change the width; lines that are too long are wrapped."""
        lines = self.lines()
        self._open(columns, self.screen.lines)
        self._stream.feed("".join(f"{line}\n" for line in lines))

    def lines(self):
        """The lines from the first one to the cursor, without it if it stands in an empty line."""
        gone = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        shown = [line.rstrip() for line in [*gone, *self.screen.display]]
        assert not any(shown[len(gone) + self.screen.cursor.y + 1 :])
        shown = shown[: len(gone) + self.screen.cursor.y + 1]
        return shown if shown[-1] else shown[:-1]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that stdout and stderr are connected with, where each step is drawn, and no time passes."""

    def connect(columns=60, rows=12, **environment):
        shown = Terminal(columns, rows)
        for name, value in {"TERM": "xterm", "NO_COLOR": "", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", shown)
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setattr("nestling.training.progress.SECONDS_BETWEEN", 0)
        monkeypatch.setattr(time, "monotonic", lambda: 100.0)
        monkeypatch.setattr(live, "_size", lambda of: os.terminal_size((of.screen.columns, of.screen.lines)))
        return shown

    return connect


def bar(done, total, length=32):
    return "━" * (length * done // total) + "─" * (length - length * done // total)


TABLE = "width  NLL\n----------\n  0.5  0.3\n    1  0.2"


def test_a_block_below_the_printed_lines(terminal):
    shown = terminal(80)
    with Progress(4, "train") as progress:
        assert shown.lines() == [f"train  {bar(0, 4)}  step 0 of 4"]
        progress.step(NLL="0.5")
        progress.below(TABLE)
        progress.say("epoch 1")
        assert shown.lines() == [
            "epoch 1",
            f"train  {bar(1, 4)}  step 1 of 4  0:00 left",
            "NLL 0.5",
            *TABLE.split("\n"),
        ]
        progress.below("one line")
        progress.say("epoch 2")
        assert shown.lines()[2:] == [f"train  {bar(1, 4)}  step 1 of 4  0:00 left", "NLL 0.5", "one line"]
        assert (shown.screen.cursor.x, shown.screen.cursor.hidden) == (0, False)
    assert shown.lines() == ["epoch 1", "epoch 2"]
    assert sys.stdout is sys.stderr is shown
    print("after")
    assert shown.lines() == ["epoch 1", "epoch 2", "after"]


def test_whatever_is_printed_in_between_is_above_the_block(terminal):
    shown = terminal(80, 30)
    expected = []
    with Progress(20, "train") as progress:
        progress.below(TABLE)
        for number in range(5):
            progress.step()
            print(f"print {number}")
            print(f"error {number}", file=sys.stderr)
            print("a part, ", end="")
            sys.stdout.flush()
            progress.step()
            print(f"and the rest {number}\n")
            sys.stdout.writelines([f"one {number}\n", "two\n"])
            expected += [
                f"print {number}",
                f"error {number}",
                f"a part, and the rest {number}",
                "",
                f"one {number}",
                "two",
            ]
        assert shown.lines()[: len(expected)] == expected
        assert shown.lines()[len(expected) :][1:] == TABLE.split("\n")
        print("no end", end="")
        assert "no end" not in "".join(shown.lines())
    assert shown.lines() == [*expected, "no end"]


@pytest.mark.parametrize("columns", [2, 9, 20, 33, 47, 61])
def test_narrow_terminals(terminal, columns):
    shown = terminal(columns, 40)
    long = "a long line of a table " * 4
    with Progress(1000, "search", step="cut", at_most=True) as progress:
        for _ in range(5):
            progress.step(best="0.123456789")
        progress.below(f"{long}\n{long}")
        progress.step(best="0.123456789")
        lines = shown.lines()
        assert len(lines) == 4
        assert all(len(line) < columns for line in lines)
        words = ["search", "cut 6 of at most 1,000", "at most 0:00 left"]
        room = columns - 1 - len("  ".join(["", *words]))
        assert (
            lines[0]
            == "  ".join([words[0], *([bar(6, 1000, room)] if room >= 8 else []), *words[1:]])[: columns - 1].rstrip()
        )
        assert lines[2] == lines[3] == long[: columns - 1].rstrip()
    assert shown.lines() == []


def test_few_rows(terminal):
    shown = terminal(60, 3)
    with Progress(4, "train") as progress:
        progress.below(TABLE)
        for number in range(4):
            progress.step()
            progress.say(f"line {number}")
            assert len(shown.lines()) == number + 3  # two of the block
    assert shown.lines() == [f"line {number}" for number in range(4)]


@pytest.mark.parametrize("widths", [(40, 25, 11), (120,), (30, 90, 13, 50)])
def test_a_terminal_that_changes_its_size(terminal, widths):
    shown = terminal(60, 40)
    with Progress(30, "train") as progress:
        progress.below(TABLE + "\na line of this table that is quite long, forty")
        progress.step()
        for number, columns in enumerate(widths):
            progress.say(f"line {number}")
            shown.resize(columns)
            progress.step()
            lines = shown.lines()
            assert lines[: number + 1] == [f"line {n}" for n in range(number + 1)]
            assert len(lines) == number + 1 + 6
            assert lines[number + 1].startswith("train")
            assert lines[number + 3] == "----------"[: columns - 1]
    assert shown.lines() == [f"line {n}" for n in range(len(widths))]


def test_lines_that_scroll_away(terminal):
    shown = terminal(60, 8)
    with Progress(50, "train") as progress:
        progress.below(TABLE)
        for number in range(50):
            progress.step()
            progress.say(f"line {number}")
            assert shown.lines()[-4:] == TABLE.split("\n")
    assert shown.lines() == [f"line {number}" for number in range(50)]


def test_colour(terminal):
    coloured, plain = ("\x1b[36m━", "\x1b[90m─"), ("━", "─")
    for setting in ("", "1"):
        shown = terminal(80, NO_COLOR=setting)
        with Progress(2, "train") as progress:
            progress.step()
        assert all(part in shown.written for part in (plain if setting else coloured))
        assert ("m" in shown.written.replace("train", "")) != bool(setting)


def test_no_live_block_on_a_terminal_without_control(terminal):
    shown = terminal(80, TERM="dumb")
    with Progress(2, "train") as progress:
        progress.step(NLL="0.5")
        progress.below(TABLE)
        progress.say("a line")
        assert not progress.is_live
    assert shown.written == "a line\n"


def test_a_terminal_without_these_characters(terminal):
    shown = terminal(80)
    shown.encoding = "latin-1"
    with Progress(2, "train") as progress:
        progress.step()
        assert shown.lines() == ["train  " + "#" * 16 + "-" * 16 + "  step 1 of 2  0:00 left"]
    shown.written.encode("ascii")


def test_one_progress_within_another(terminal):
    shown = terminal(80)
    with Progress(2, "demo") as outer:
        with Progress(3, "train") as inner:
            inner.step()
            outer.say("a line")
            assert [line.split(" ")[0] for line in shown.lines()] == ["a", "demo", "train"]
        assert [line.split(" ")[0] for line in shown.lines()] == ["a", "demo"]
        outer.step()
    assert shown.lines() == ["a line"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_the_terminal_as_it_was(terminal, error):
    shown = terminal(80)

    def interrupted():
        with Progress(2, "train") as progress:
            progress.say("a line")
            raise error

    with pytest.raises(error):
        interrupted()
    assert shown.lines() == ["a line"]
    assert sys.stderr is sys.stdout is shown
    assert "\x1b[?25l" not in shown.written  # hides the cursor


def test_nothing_if_it_is_not_shown(terminal):
    shown = terminal(80)
    with Progress(2, "train", shown=False) as progress:
        progress.step()
        progress.say("a line")
    assert shown.written == ""


def test_the_time_left(terminal, monkeypatch):
    now = 100.0
    shown = terminal(100)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(100, "train", done=40) as progress:
        assert "left" not in shown.lines()[0]
        now = 130.0
        progress.step()
        progress.step()
        assert shown.lines()[0].endswith("step 42 of 100  14:30 left")  # 58 of 15 seconds
        progress.go_to(20)
        assert shown.lines()[0].endswith("step 20 of 100  20:00 left")
        now = 3700.0
        progress.step()
        assert shown.lines()[0].endswith("26:20:00 left")  # 79 of 1,200 seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_it_is_not_drawn_at_every_step(terminal, monkeypatch):
    now = 100.0
    shown = terminal(80)
    monkeypatch.setattr("nestling.training.progress.SECONDS_BETWEEN", 0.1)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(1000, "train") as progress:
        for _ in range(900):
            now += 0.001
            progress.step()
        assert shown.written.count("train") == 10


SCRIPT = """
import sys, warnings; sys.path.insert(0, {tests!r})
from small_networks import QUICK, examples, nested_mlp
import nestling as nl

def warned(nested):
    warnings.warn("beware")
    return {{}}

try:
    data = examples(), examples(seed=3)
    nl.train(nested_mlp(), data, QUICK.but(epochs=100_000), figures=warned, quiet=False)
except KeyboardInterrupt as stopped:
    print(f"{{type(stopped).__name__}}")
"""


def test_a_training_that_ctrl_c_stops():
    parent, child = pty.openpty()
    words = [sys.executable, "-c", SCRIPT.format(tests=str(Path(__file__).parent))]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "", "LINES": ""}
    screen = pyte.HistoryScreen(80, 24, history=100_000)
    stream = pyte.ByteStream(screen)
    received = b""
    until = time.monotonic() + PATIENCE
    with subprocess.Popen(words, stdin=child, stdout=child, stderr=child, env=env) as process:
        os.close(child)
        blocks = []
        while time.monotonic() < until:
            ready, _, _ = select.select([parent], [], [], PATIENCE)
            try:
                part = os.read(parent, 4096) if ready else b""
            except OSError:  # the other end is closed
                part = b""
            if not part:
                break
            received += part
            stream.feed(part)
            if (
                len(blocks) < 1
                and any("width" in line for line in screen.display)
                and "left" in "".join(screen.display)
            ):
                blocks.append([line.rstrip() for line in screen.display if line.strip()])
                process.send_signal(signal.SIGINT)
    os.close(parent)
    assert process.returncode == 0, received.decode()
    (block,) = blocks
    assert any(line.startswith("epoch 1/100000  loss ") for line in block)
    assert sum(line.endswith("UserWarning: beware") for line in block) == 1
    bars = [line for line in block if line.startswith("train  epoch ")]
    assert len(bars) == 1
    after = block[block.index(bars[0]) + 1 :]
    assert [word for word in ("NLL", "weight KL", "order KL") if word in after[0]] == ["NLL", "weight KL", "order KL"]
    assert after[1].split() == ["width", "accuracy", "NLL", "ECE"]
    shown = [line.rstrip() for line in screen.display if line.strip()]
    assert shown[-1] == "Stopped"
    assert all(line.startswith("epoch ") or "beware" in line for line in shown[:-1])
    assert not screen.cursor.hidden
    assert b"\x1b[?25l" not in received
