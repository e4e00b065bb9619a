"""At which share of weights left a sparse linear layer is faster than a dense one, at batch 1 and 64, on one thread."""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nestling.pruning import SparseLinear
from nestling.pruning.run_time import RunTimeGate, RunTimeReader

SIZES = ((300, 784), (500, 800), (1024, 1024), (4096, 4096))
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
USED = (0.05, 0.1, 0.2, 0.4)
BATCHES = (1, 64)
ROUNDS, SECONDS = 7, 0.02


def main(sizes: tuple[tuple[int, int], ...]) -> None:
    torch.set_num_threads(1)
    for out_features, in_features in sizes:
        size = {"out": out_features, "in": in_features}
        for batch in BATCHES:
            found = measure(out_features, in_features, batch)
            print(json.dumps({"question": "sparse against dense", **size, "batch": batch} | found))
        print(
            json.dumps(
                {"question": "units picked at run time, batch 1", **size} | at_run_time(out_features, in_features)
            )
        )


@torch.no_grad()
def measure(out_features: int, in_features: int, batch: int) -> dict[str, object]:
    """Microseconds of the dense layer, how many times faster the sparse one is at each share, and where it starts."""
    torch.manual_seed(0)
    x = torch.randn(batch, in_features)
    dense = nn.Linear(in_features, out_features)
    faster = {}
    whole = 0.0
    for share in SHARES:
        weight = dense.weight * (torch.rand(out_features, in_features) < share)
        sparse = SparseLinear(weight, dense.bias, as_rows=True)
        whole, part = paired(lambda: dense(x), lambda own=sparse: own(x))  # type: ignore[misc]
        faster[str(share)] = round(whole / part, 2)
    starts = [share for share in SHARES if faster[str(share)] > 1]
    return {"dense_us": round(1e6 * whole, 1), "times_faster": faster, "faster_up_to": max(starts, default=None)}


@torch.no_grad()
def at_run_time(out_features: int, in_features: int) -> dict[str, object]:
    """How many times faster than the plain layer is one whose gate keeps a share of its inputs, gate and all."""
    torch.manual_seed(0)
    x = torch.randn(1, in_features)
    dense = nn.Linear(in_features, out_features).eval()
    nothing, rows = torch.zeros(in_features), torch.arange(in_features).unsqueeze(1)
    faster = {}
    for share in USED:
        kept = (torch.rand(in_features) < share).float()
        gate = RunTimeGate(torch.ones(in_features), nothing, nothing, kept, rows, -1, 0.01)
        reader = RunTimeReader(gate, dense, few=1.0).eval()
        whole, part = paired(lambda: dense(x), lambda own=reader: own(x))  # type: ignore[misc]
        faster[str(share)] = round(whole / part, 2)
    return {"times_faster": faster}


def paired(one: Callable[[], Tensor], other: Callable[[], Tensor]) -> tuple[float, float]:
    """The median time of each of two functions, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for found, function in zip(times, (one, other), strict=True):
            function()
            number, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < SECONDS or number < 3:
                function()
                number += 1
            found.append(passed / number)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    chosen = tuple(tuple(map(int, own.split("x"))) for own in sys.argv[1:])
    main(chosen or SIZES)  # type: ignore[arg-type]
