"""What the benchmarks share: functions timed in turns, so that a noisy machine disturbs all alike, and peak memory."""

import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Times = dict[str, list[float]]
WARM_UP = 4
"""Calls before time is taken: the first ones get memory that the machine has yet to find."""


def in_turns(functions: Mapping[str, Callable[[], object]], rounds: int, repeats: Mapping[str, int] | int = 1) -> Times:
    """Seconds of a call, one figure a round, all functions called some times before; ``repeats`` calls make a figure.

    CPU time on one thread, which another process disturbs least; with more threads, which also wait for each other, the
    time on the clock.
    """
    _keep_freed_memory()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(WARM_UP):
        for function in functions.values():
            function()
    found: Times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            number = repeats if isinstance(repeats, int) else repeats.get(name, 1)
            start = clock()
            for _ in range(number):
                function()
            found[name].append((clock() - start) / number)
    return found


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed, so that a function does not pay for pages that the one before it gave back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD: from the heap, up to the most that it allows
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: and not back to the system


def ratio(times: Times, name: str, to: str) -> dict[str, float]:
    """The median over the rounds of one time over another of the same round, and the quartiles around it."""
    rows = [one / other for one, other in zip(times[name], times[to], strict=True)]
    low, middle, high = statistics.quantiles(rows, n=4, method="inclusive") if len(rows) > 1 else rows * 3
    return {"median": round(middle, 3), "from": round(low, 3), "to": round(high, 3)}


def peak_memory(script: str, arguments: Sequence[str]) -> int:
    """Bytes that a process of its own holds at most: the last line that a script prints."""
    run = subprocess.run([sys.executable, script, *arguments], check=True, capture_output=True, text=True)
    return int(run.stdout.splitlines()[-1])


def report(question: str, **figures: object) -> None:
    """Print one finding as a line of JSON."""
    print(json.dumps({"question": question, **figures, "load": round(os.getloadavg()[0], 2)}), flush=True)


def machine() -> dict[str, object]:
    """What figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def own_peak() -> int:
    """Bytes this process has held at most; not by getrusage, where a child starts with its parent's figure."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
