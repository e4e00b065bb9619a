"""A service simulated event by event: the controller's own functions, arrivals at random, and no clock."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nestling.service.controller import Load, Pace, Rate, State, batch_limit, chosen, most_waiting, paced

TICK = 0.1


@dataclass(frozen=True)
class Simulated:
    """Arrival, latency and width of each request, the width over time, and how many were turned away."""

    arrived: np.ndarray
    latency: np.ndarray
    width: np.ndarray
    looks: list[tuple[float, int]]
    refused: int

    def during(self, start, end):
        return self.latency[(self.arrived >= start) & (self.arrived < end)]

    def width_at(self, time):
        return next(width for at, width in reversed(self.looks) if at <= time)

    @property
    def changes(self):
        widths = [width for _, width in self.looks]
        return sum(one != other for one, other in pairwise(widths))


def arrivals(phases, seed=0):
    """Times of Poisson arrivals for phases of (seconds, examples per second)."""
    rng, start, times = np.random.default_rng(seed), 0.0, []
    for seconds, rate in phases:
        gaps = rng.exponential(1 / rate, int(seconds * rate * 1.5) + 20) if rate else np.zeros(0)
        own = start + gaps.cumsum()
        times.append(own[own < start + seconds])
        start += seconds
    return np.concatenate(times), start


def simulate(law, measured, phases, *, true=None, queue=256, width=None, seed=0, noise=0.0):
    """Run the phases; ``measured`` is what the service thinks batches take, ``true`` what they take at a time."""
    times, end = arrivals(phases, seed)
    rng = np.random.default_rng(seed + 1)
    true = true or (lambda at: measured)
    state, rate = State(len(measured) - 1 if width is None else width), Rate(law.memory)
    paces = [Pace()] * len(measured)
    waiting, done, looks, refused, now, free, number = deque(), [], [], 0, 0.0, 0.0, 0

    def look(at):
        nonlocal state
        load = Load(len(waiting), at - waiting[0] if waiting else 0.0, rate.now(at))
        if width is None:
            state = chosen(law, state, load, paced(measured, paces, at), at)
        looks.append((at, state.width))

    tick = 0.0
    while number < len(times) or waiting or tick < end:
        start = max(free, waiting[0]) if waiting else np.inf
        coming = times[number] if number < len(times) else np.inf
        now = min(start, coming, tick if tick < end else np.inf)
        if now == coming:
            number += 1
            rate = rate.after(1, now)
            if len(waiting) < most_waiting(law, queue, paced(measured, paces, now)[0]):
                waiting.append(now)
            else:
                refused += 1
        elif now == start:
            look(now)
            limit = batch_limit(law, paced(measured, paces, now)[state.width])
            batch = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
            took = true(now)[state.width].of(len(batch)) * np.exp(noise * rng.standard_normal())
            free = now + took
            paces[state.width] = paces[state.width].after(measured[state.width].of(len(batch)), took, free)
            done += [(at, free - at, state.width) for at in batch]
        else:
            if not waiting:
                look(now)
            tick += TICK
    arrived, latency, widths = (np.array(column) for column in zip(*done, strict=True))
    return Simulated(arrived, latency, widths, looks, refused)
