"""The law of the width: its formulas by hand, and a service that is simulated event by event."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from nestling.service.controller import (
    FORGETTING,
    BatchTime,
    Law,
    Load,
    Pace,
    Rate,
    State,
    batch_limit,
    busy,
    chosen,
    latency,
    most_waiting,
    paced,
    within,
)

sys.path.insert(0, str(Path(__file__).parent))
from simulation import simulate

LAW = Law(target=0.1, max_batch=32)
TIMES = [
    BatchTime(0.0005, 0.0008),
    BatchTime(0.0006, 0.0018),
    BatchTime(0.0007, 0.0042),
    BatchTime(0.0008, 0.008),
]
FULL = 1 / TIMES[-1].each
"""Examples per second that the full width can serve at most."""
IDLE, WIDEST = Load(0, 0.0, 0.0), len(TIMES) - 1


def test_batches_take_a_share_of_the_target():
    assert [batch_limit(LAW, time) for time in TIMES] == [24, 10, 4, 2]
    assert batch_limit(LAW, BatchTime(1.0, 1.0)) == 1
    assert batch_limit(LAW, BatchTime(0.0, 0.0)) == 32


def test_latency_of_the_slowest_that_waits():
    time = TIMES[2]  # four at a time
    assert latency(LAW, Load(1, 0.0, 0.0), time) == time.of(1)
    assert latency(LAW, Load(9, 0.0, 0.0), time) == 3 * time.of(4)
    assert latency(LAW, Load(1, 0.05, 0.0), time) == 0.05 + time.of(1)
    assert latency(LAW, Load(9, 0.0, 0.0, lag=0.03), time) == pytest.approx(0.03 + 3 * time.of(4))


def test_share_of_time_that_is_busy():
    assert busy(LAW, Load(0, 0.0, 100.0), TIMES[2]) == pytest.approx(100 * TIMES[2].of(4) / 4)


def test_it_narrows_at_once_to_the_widest_that_holds():
    assert chosen(LAW, State(WIDEST), Load(30, 0.0, 0.0), TIMES, 0.0) == State(1)
    assert chosen(LAW, State(WIDEST), Load(1000, 0.0, 0.0), TIMES, 0.0) == State(0)
    assert chosen(LAW, State(WIDEST), Load(1, 0.0, 1.5 * FULL), TIMES, 0.0) == State(2)


def test_it_widens_one_step_after_patience():
    state = chosen(LAW, State(0), IDLE, TIMES, 10.0)
    assert state == State(0, 10.0)
    assert chosen(LAW, state, IDLE, TIMES, 10.0 + 0.9 * LAW.patience) == state
    assert chosen(LAW, state, IDLE, TIMES, 10.0 + LAW.patience) == State(1)


def test_patience_begins_anew_when_the_wider_width_would_not_do():
    state = chosen(LAW, State(0, 10.0), Load(0, 0.0, 10 * FULL), TIMES, 10.4)
    assert state == State(0, None)


def test_between_the_two_thresholds_nothing_changes():
    rate = 0.8 * FULL * TIMES[-1].each / (TIMES[-1].of(2) / 2)  # busy 0.8, between 0.7 and 0.9
    load = Load(0, 0.0, rate)
    assert busy(LAW, load, TIMES[-1]) == pytest.approx(0.8)
    for width in (WIDEST, WIDEST - 1):
        state = State(width)
        for step in range(100):
            state = chosen(LAW, state, load, TIMES, step / 10)
        assert state == State(width)


def test_widest_within_a_budget():
    assert within(LAW, IDLE, TIMES, 0.01) == WIDEST
    assert within(LAW, IDLE, TIMES, 0.005) == 2
    assert within(LAW, IDLE, TIMES, 1e-6) == 0
    assert within(LAW, Load(40, 9.0, 0.0), TIMES, 0.1) == 1  # 41 examples: 5 batches of 10


def test_what_can_only_be_late_is_refused():
    assert most_waiting(LAW, 256, TIMES[0]) == 3 * 24
    assert most_waiting(LAW, 40, TIMES[0]) == 40
    assert most_waiting(LAW, 256, BatchTime(1.0, 1.0)) == LAW.max_batch


def test_rate_is_an_average_over_the_memory():
    rate = Rate(0.5)
    for step in range(1, 1001):
        rate = rate.after(1, step / 100)
    assert rate.now(10.0) == pytest.approx(100, rel=0.02)
    assert rate.now(10.5) == pytest.approx(rate.now(10.0) / math.e)
    assert Rate(0.5).now(3.0) == 0


def test_a_pace_goes_to_the_ratio_of_what_is_seen_and_back_to_one():
    pace = Pace()
    for _ in range(50):
        pace = pace.after(0.01, 0.03, 7.0)
    assert pace.now(7.0) == pytest.approx(3.0, rel=1e-3)
    assert pace.now(7.0 + FORGETTING) == pytest.approx(1 + 2 / math.e, rel=1e-3)
    assert Pace().after(0.01, 100.0, 0.0).now(0.0) < 5  # one odd batch
    assert paced(TIMES[:2], [Pace(), Pace(2.0, 1.0)], 1.0) == [TIMES[0], BatchTime(0.0012, 0.0036)]


PHASES = [(3, 0.3 * FULL), (8, 3 * FULL), (8, 0.3 * FULL)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_at_three_times_the_load_it_holds_the_target_and_comes_back(seed):
    found = simulate(LAW, TIMES, PHASES, seed=seed, noise=0.2)
    assert found.refused == 0
    assert np.quantile(found.latency, 0.99) < LAW.target
    assert {found.width_at(time) for time in (2.9, 18.9)} == {WIDEST}
    assert found.width_at(8.0) < WIDEST
    assert all(found.width_at(time) == WIDEST for time in np.arange(16.0, 19.0, 0.1))  # 5 seconds after the load


def test_the_full_width_alone_can_not():
    found = simulate(LAW, TIMES, PHASES, width=WIDEST, queue=10_000)
    fixed = simulate(LAW, TIMES[-1:], PHASES, queue=10_000)
    assert np.quantile(found.during(3, 11), 0.99) > 5 * LAW.target  # it queues
    assert fixed.refused > 0.5 * len(fixed.latency)  # or refuses


def test_beyond_the_narrowest_it_refuses_and_answers_the_others_in_time():
    found = simulate(LAW, TIMES, [(3, 0.3 * FULL), (6, 14 * FULL)], noise=0.2)
    assert found.refused > 0
    assert np.quantile(found.latency, 0.99) < 1.1 * LAW.target


def test_a_machine_that_gets_slower_is_noticed():
    slower = [BatchTime(3 * time.start, 3 * time.each) for time in TIMES]
    found = simulate(LAW, TIMES, [(9, 0.6 * FULL)], true=lambda at: slower if at > 3 else TIMES, noise=0.2)
    assert np.quantile(found.latency, 0.99) < LAW.target
    assert found.width_at(8.5) < WIDEST


@pytest.mark.parametrize("extra", [0.002, 0.004])
def test_what_every_batch_costs_beside_does_not_keep_it_narrow(extra):
    """A narrow batch is made several times slower by it, a wide one hardly."""
    true = [BatchTime(time.start + extra, time.each) for time in TIMES]
    found = simulate(LAW, TIMES, PHASES, true=lambda _: true, noise=0.2)
    assert np.quantile(found.during(3, 11), 0.99) < LAW.target
    assert np.mean([found.width_at(time) == WIDEST for time in np.arange(14.0, 19.0, 0.1)]) > 0.7


@pytest.mark.parametrize("share", [0.2, 0.4, 0.8, 1.5])
def test_a_steady_load_does_not_make_it_flicker(share):
    found = simulate(LAW, TIMES, [(30, share * FULL)], noise=0.2)
    assert found.changes <= 15  # of 300 looks and more


def test_nothing_to_do_is_the_widest():
    assert simulate(LAW, TIMES, [(0.5, 2 * FULL), (4, 0)]).looks[-1][1] == WIDEST
