"""The queue: collects what waits into batches, runs each at one width, and gives every request its answer."""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from nestling.errors import ArgumentError
from nestling.service.cascading import Cascading
from nestling.service.controller import (
    BatchTime,
    Law,
    Load,
    Pace,
    Rate,
    State,
    batch_limit,
    chosen,
    most_waiting,
    paced,
    within,
)
from nestling.service.engine import ANSWERED, Engine
from nestling.service.finishing import finished
from nestling.service.metrics import Metrics
from nestling.service.options import Serving
from nestling.service.refusals import Refused
from nestling.service.width import Arrays, Calibrated

TICK = 0.1
"""Seconds between two looks at the width while nothing is asked."""


@dataclass(frozen=True)
class Wish:
    """What a request asks for: a width by its number, seconds to be answered in, a cascade, or none of these."""

    width: int | None = None
    budget: float | None = None
    cascade: Cascading | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The ``outputs`` for the examples of a request, and the number of the width that answered each of them.

    ``thresholds`` are those of the conformal sets of the first example. Where the network tells classes apart, the
    outputs have ``ANSWERED``: it is false if a cascade ended in "I don't know".
    """

    outputs: dict[str, np.ndarray]
    widths: np.ndarray
    thresholds: Mapping[float, float]


@dataclass(eq=False)
class _Request:
    """A request on its way: its inputs, and what is known of its answer."""

    inputs: Arrays
    size: int
    wish: Wish
    arrived: float
    answer: asyncio.Future[Answer]
    parts: list[tuple[np.ndarray, int, Arrays]] = field(default_factory=list)
    thresholds: Mapping[float, float] = field(default_factory=dict)

    def finish(self) -> None:
        """Put the parts together, which several widths may have answered."""
        rows = np.concatenate([rows for rows, _, _ in self.parts])
        order = np.argsort(rows)
        names = self.parts[0][2]
        outputs = {name: np.concatenate([part[name] for _, _, part in self.parts])[order] for name in names}
        widths = np.concatenate([np.full(len(rows), width) for rows, width, _ in self.parts])[order]
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in outputs.values()):
            self.refuse(Refused(400, "the network's answer to these inputs is not finite: scale the inputs down"))
        elif not self.answer.done():
            self.answer.set_result(Answer(outputs, widths, self.thresholds))

    def refuse(self, error: Exception) -> None:
        """End the request with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Examples of a request that wait to be run, by their rows; ``step`` is the number of a step of a cascade."""

    request: _Request
    rows: np.ndarray
    width: int | None
    step: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of one example of each input."""
        return tuple(array.shape[1:] for array in self.request.inputs.values())


class Dispatcher:
    """Runs the requests of a service on one thread, a batch at a time.

    Args:
        engine: the network.
        options: the limits and the aim of the service.
        metrics: what is counted.
    """

    def __init__(self, engine: Engine, options: Serving, metrics: Metrics) -> None:
        self.engine, self.metrics = engine, metrics
        self.law = Law(options.target_ms / 1000, options.max_batch)
        self._queue, self._collect = options.queue, options.collect_ms / 1000
        self._measured = measured(engine, options.max_batch)
        self._paces, self._lag = [Pace()] * len(engine.widths), 0.0
        self._rate = Rate(self.law.memory)
        self._state = State(len(engine.widths) - 1)
        self._pieces: deque[_Piece] = deque()
        self._thread = ThreadPoolExecutor(1, "nestling-run")
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()

    @property
    def waiting(self) -> int:
        """The number of examples that wait."""
        return sum(len(piece.rows) for piece in self._pieces)

    @property
    def width(self) -> int:
        """The number of the width at which the next batch runs unless a request asks for another."""
        return self._state.width

    @property
    def times(self) -> list[BatchTime]:
        """What a batch takes now, of each width."""
        return paced(self._measured, self._paces, time.perf_counter())

    def start(self) -> None:
        """Begin to run batches, in the running event loop, unless they run already."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._batches()), asyncio.create_task(self._looks())]

    async def stop(self) -> None:
        """Stop, once nothing waits any more."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._thread.shutdown()

    async def answer(self, inputs: Arrays, wish: Wish) -> Answer:
        """The answer for the inputs of a request, each with the batch first.

        Raises:
            Refused: if the queue is full, or the network refuses the inputs.
        """
        self.start()
        size, now = len(next(iter(inputs.values()))), time.perf_counter()
        self._rate = self._rate.after(size, now)
        if self.waiting + size > most_waiting(self.law, self._queue, self.times[0]):
            raise Refused(429, f"{self.waiting} examples wait already: try again later", {"Retry-After": "1"})
        request = _Request(inputs, size, wish, now, asyncio.get_running_loop().create_future())
        self._pieces.append(_Piece(request, np.arange(size), self._first_width(wish, now)))
        self._work.set()
        return await request.answer

    def _first_width(self, wish: Wish, now: float) -> int | None:
        if wish.cascade is not None:
            return wish.cascade.steps[0].width
        if wish.budget is not None:
            return within(self.law, self._load(now), self.times, wish.budget)
        return wish.width

    def _load(self, now: float) -> Load:
        waited = now - self._pieces[0].request.arrived if self._pieces else 0.0
        return Load(self.waiting, waited, self._rate.now(now), self._lag)

    def _look(self) -> None:
        """Choose the width."""
        now = time.perf_counter()
        self._state = chosen(self.law, self._state, self._load(now), self.times, now)

    async def _looks(self) -> None:
        """See how late timers are, and choose the width, so that it is back when nothing is asked any more."""
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            self._lag = max(0.0, time.perf_counter() - due)
            if not self._pieces:
                self._look()

    async def _batches(self) -> None:
        """Run a batch after the other."""
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            pause = self._pieces[0].request.arrived + self._collect - time.perf_counter()
            if pause > 0 and self.waiting < self.law.max_batch:
                await asyncio.sleep(pause)
            self._look()
            width, pieces = self._next_batch()
            began = time.perf_counter()
            try:
                outputs = await loop.run_in_executor(self._thread, self._run, width, pieces)
                expected = self._measured[width].of(sum(len(piece.rows) for piece in pieces))
                ended = time.perf_counter()
                self._paces[width] = self._paces[width].after(expected, ended - began, ended)
                for piece, own in zip(pieces, outputs, strict=True):
                    self._give(width, piece, own)
            except ArgumentError as error:
                _refuse(pieces, Refused(400, str(error)))
            except Exception as error:  # whatever a runtime raises: the service goes on with the next batch
                _refuse(pieces, error)
            if not self._pieces:
                self._work.clear()

    def _next_batch(self) -> tuple[int, list[_Piece]]:
        """Take the oldest piece, and others that run at the same width, as many as a batch may have."""
        first = self._pieces.popleft()
        width = self.width if first.width is None else first.width
        pieces, kept = [first], deque[_Piece]()
        room = batch_limit(self.law, self.times[width]) - len(first.rows)
        for piece in self._pieces:
            own = self.width if piece.width is None else piece.width
            if self.engine.mixes and own == width and len(piece.rows) <= room and piece.shapes == first.shapes:
                pieces.append(piece)
                room -= len(piece.rows)
            else:
                kept.append(piece)
        self._pieces = kept
        return width, pieces

    def _run(self, width: int, pieces: Sequence[_Piece]) -> list[dict[str, np.ndarray]]:
        """Run a batch, and give each piece its outputs; on the thread."""
        names = pieces[0].request.inputs
        joined = {name: np.concatenate([piece.request.inputs[name][piece.rows] for piece in pieces]) for name in names}
        outputs, start, found = self.engine.run(width, joined), 0, []
        for piece in pieces:
            own = {name: array[start : start + len(piece.rows)] for name, array in outputs.items()}
            found.append(finished(own, self._calibrated(width, piece), self.engine.about))
            start += len(piece.rows)
        return found

    def _calibrated(self, width: int, piece: _Piece) -> Calibrated:
        """The calibration of what a piece is answered: that of the width, or of the step of a cascade."""
        cascade = piece.request.wish.cascade
        own = None if cascade is None else cascade.steps[piece.step].calibrated
        return self.engine.widths[width].calibrated if own is None else own

    def _give(self, width: int, piece: _Piece, own: dict[str, np.ndarray]) -> None:
        """Take the outputs of a piece; what a cascade is unsure of goes on at the front of the queue."""
        request, cascade, step = piece.request, piece.request.wish.cascade, piece.step + 1
        sure = np.ones(len(piece.rows), bool) if cascade is None else cascade.sure(piece.step, own)
        goes_on = np.zeros_like(sure) if cascade is None or step == len(cascade.steps) else ~sure
        if not goes_on.all():
            known = {ANSWERED: sure} if self.engine.tells_classes else {}
            done = {name: array[~goes_on] for name, array in (own | known).items()}
            request.parts.append((piece.rows[~goes_on], width, done))
            request.thresholds = self._calibrated(width, piece).thresholds
            self.metrics.answered(self.engine.widths[width].name, done)
        if cascade is not None and goes_on.any():
            self._pieces.appendleft(_Piece(request, piece.rows[goes_on], cascade.steps[step].width, step))
        else:
            request.finish()


def _refuse(pieces: Sequence[_Piece], error: Exception) -> None:
    for piece in pieces:
        piece.request.refuse(error)


def measured(engine: Engine, max_batch: int) -> list[BatchTime]:
    """What a batch takes at each width, from one and from several examples of zeros."""
    several = min(max_batch, _SEVERAL)
    times = []
    for width in range(len(engine.widths)):
        one, many = (_seconds(engine, width, size) for size in (1, several))
        each = max((many - one) / (several - 1), one / several / 2) if several > 1 else one
        times.append(BatchTime(max(0.0, one - each), each))
    return times


def _seconds(engine: Engine, width: int, size: int) -> float:
    inputs = engine.zeros(size)
    engine.answer(width, inputs)
    took = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        engine.answer(width, inputs)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


_SEVERAL, _REPEATS = 8, 5
