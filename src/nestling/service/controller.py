"""The law by which the service chooses its width: pure functions of what waits, what comes and what a batch takes.

Nothing here reads a clock or waits: times are arguments, in seconds. Widths are numbers, 0 the narrowest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BatchTime:
    """What a batch of n examples takes at one width: ``start`` + n ``each``."""

    start: float
    each: float

    def of(self, num_examples: int) -> float:
        """The time of a batch."""
        return self.start + num_examples * self.each


@dataclass(frozen=True)
class Law:
    """The aim and the constants of the controller.

    A width is held while the predicted latency is at most ``hold_share`` of the ``target`` and the predicted share of
    time that is busy at most ``hold_busy``. A wider one is taken after ``patience`` seconds in which it kept below
    ``widen_share`` and ``widen_busy``. The gap between the two pairs is the hysteresis. A batch takes at most
    ``batch_share`` of the target, because a request may wait for one batch and run in the next. Requests
    that would wait longer than ``wait_share`` of the target even at the narrowest width are refused. The rate of
    arrivals is an exponential average over ``memory`` seconds.
    """

    target: float
    max_batch: int
    hold_share: float = 0.6
    hold_busy: float = 0.9
    widen_share: float = 0.4
    widen_busy: float = 0.7
    batch_share: float = 0.2
    wait_share: float = 0.7
    patience: float = 0.5
    memory: float = 0.7


@dataclass(frozen=True)
class Load:
    """What there is to do: examples ``waiting``, how long the oldest ``waited``, and examples per second (``rate``).

    ``lag`` is how late the service itself is: requests that it has not read yet wait this long beside the queue.
    """

    waiting: int
    waited: float
    rate: float
    lag: float = 0.0


@dataclass(frozen=True)
class State:
    """The width that is chosen, and since when a wider one would have done (None if it would not do now)."""

    width: int
    safe_since: float | None = None


@dataclass(frozen=True)
class Rate:
    """Examples per second, averaged with weights that fall off as exp(-age / memory)."""

    memory: float
    value: float = 0.0
    at: float = -math.inf

    def now(self, now: float) -> float:
        """The rate at a time."""
        return self.value * math.exp(-max(0.0, now - self.at) / self.memory)

    def after(self, num_examples: int, now: float) -> "Rate":
        """The rate after examples came."""
        return replace(self, value=self.now(now) + num_examples / self.memory, at=now)


def batch_limit(law: Law, time: BatchTime) -> int:
    """The most examples of a batch that take at most ``batch_share`` of the target; at least 1."""
    if time.each <= 0:
        return law.max_batch
    most = math.floor((law.batch_share * law.target - time.start) / time.each)
    return max(1, min(law.max_batch, most))


def latency(law: Law, load: Load, time: BatchTime) -> float:
    """The predicted latency of the slowest of those that wait, with all of them run at one width.

    With q examples in batches of at most n, the last of them is answered after ceil(q / n) batches. The oldest has
    waited already, and is answered after the first batch.
    """
    limit, waiting = batch_limit(law, time), max(1, load.waiting)
    first = time.of(min(waiting, limit))
    return load.lag + max(load.waited + first, math.ceil(waiting / limit) * first)


def busy(law: Law, load: Load, time: BatchTime) -> float:
    """The share of time that full batches at one width would run at this rate of arrivals; above 1 queues grow."""
    limit = batch_limit(law, time)
    return load.rate * time.of(limit) / limit


def chosen(law: Law, state: State, load: Load, times: Sequence[BatchTime], now: float) -> State:
    """The width for the next batch: narrower at once if the load asks for it, one step wider after some patience.

    Args:
        law: The aim and the constants.
        state: The state before.
        load: What waits and comes.
        times: What a batch takes, of each width.
        now: The time.

    Returns:
        The next state. If no width can hold the target, the narrowest.

    Examples:
        >>> from nestling.service.controller import BatchTime, Law, Load, State, chosen
        >>> law, times = Law(target=0.1, max_batch=8), [BatchTime(0.001, 0.001), BatchTime(0.001, 0.01)]
        >>> chosen(law, State(1), Load(waiting=40, waited=0.05, rate=300.0), times, now=0.0).width
        0
    """

    def holds(width: int, share: float, most_busy: float) -> bool:
        time = times[width]
        return latency(law, load, time) <= share * law.target and busy(law, load, time) <= most_busy

    width = state.width
    while width > 0 and not holds(width, law.hold_share, law.hold_busy):
        width -= 1
    if width < state.width:
        return State(width)
    wider = width + 1
    if wider == len(times) or not holds(wider, law.widen_share, law.widen_busy):
        return State(width)
    since = now if state.safe_since is None else state.safe_since
    return State(wider) if now - since >= law.patience else State(width, since)


def within(law: Law, load: Load, times: Sequence[BatchTime], budget: float) -> int:
    """The widest width at which a request that comes now is predicted to be answered within a budget, else 0."""
    behind = replace(load, waiting=load.waiting + 1, waited=0.0)
    fitting = [width for width, time in enumerate(times) if latency(law, behind, time) <= budget]
    return max(fitting, default=0)


def most_waiting(law: Law, queue: int, narrowest: BatchTime) -> int:
    """The most examples that may wait: those that the narrowest width answers within ``wait_share`` of the target.

    What comes beyond it could only be answered too late, so it is refused at once. It is at least a batch, and at most
    the limit that was set for the ``queue``.
    """
    limit = batch_limit(law, narrowest)
    batches = math.floor(law.wait_share * law.target / max(narrowest.of(limit), _SHORTEST))
    return min(queue, max(law.max_batch, batches * limit))


@dataclass(frozen=True)
class Pace:
    """How much longer batches of one width take than was measured when the service started.

    It is an average over the latest batches of this width. While none runs it goes back to 1, so that a width that was
    slow once is tried again.
    """

    factor: float = 1.0
    at: float = -math.inf

    def now(self, now: float) -> float:
        """The factor at a time."""
        return 1 + (self.factor - 1) * math.exp(-max(0.0, now - self.at) / FORGETTING)

    def after(self, predicted: float, observed: float, now: float) -> "Pace":
        """The pace after a batch."""
        ratio = min(SLOWEST, max(1 / SLOWEST, observed / predicted)) if predicted > 0 else 1.0
        before = self.now(now)
        return Pace(before + LEARNING * (ratio - before), now)


def paced(times: Sequence[BatchTime], paces: Sequence[Pace], now: float) -> list[BatchTime]:
    """What a batch takes now, of each width."""
    factors = [pace.now(now) for pace in paces]
    return [BatchTime(time.start * f, time.each * f) for time, f in zip(times, factors, strict=True)]


LEARNING = 0.2
"""The weight of the latest batch in the average of a ``Pace``."""
FORGETTING = 5.0
"""Seconds without a batch of a width after which its pace is a third (1 / e) as far from 1."""
SLOWEST = 20.0
"""One batch changes the average by no more than if it had taken this many times as long as expected."""
_SHORTEST = 1e-6
