"""The nested quantiser: its error by pairs and start, what training recovers of it on digits, bytes, and speed."""

import json
import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.reading.options import HOWS, How
from nestling.running.packed_bits import num_bytes, pack, unpack
from nestling.running.quantiser import codes, fitted_log_tau, initial_log_tau, quantise

PAIRS = (1, 2, 3, 4)
SEEDS = (0, 1, 2)
STEPS = 1000
WIDTHS = (64, 128, 128, 64)
STARTS: dict[str, Callable[[Tensor], Tensor]] = {"FN3": initial_log_tau, "fitted": fitted_log_tau}
QUANTISED = ("3.weight", "6.weight")
FULL_SHARPNESS = 2000.0


def main() -> None:
    torch.set_num_threads(1)
    for name, weight in samples().items():
        print(json.dumps({"question": "rms error / rms weight, by pairs", "weights": name} | errors(weight)))
    print(json.dumps({"question": "share of weights with a gradient, straight through, FN3's start"} | alive()))
    print(json.dumps({"question": "bytes / float32 of a million weights"} | sizes()))
    print(json.dumps({"question": "speed, a million weights"} | speed()))
    for norm in (False, True):
        for name, found in training(norm).items():
            question = {"question": "digits, test error % by pairs", "layer norm": norm, "trained": name}
            print(json.dumps(question | found))


def samples() -> dict[str, Tensor]:
    torch.manual_seed(0)
    gaussian = torch.randn(100_000)
    laplace = torch.distributions.Laplace(0.0, 1.0).sample((100_000,))
    outlier = gaussian.clone()
    outlier[0] = 20.0
    return {
        "gaussian, 10,000": gaussian[:10_000],
        "gaussian, 100,000": gaussian,
        "laplace": laplace,
        "outlier": outlier,
    }


def errors(weight: Tensor) -> dict[str, list[float]]:
    found = {
        f"{name} start": [error(weight, start(weight), pairs) for pairs in PAIRS] for name, start in STARTS.items()
    }
    return found | {"own tau for each": [error(weight, fitted_log_tau(weight, pairs), pairs) for pairs in PAIRS]}


def error(weight: Tensor, log_tau: Tensor, num_pairs: int) -> float:
    return round(float((quantise(weight, log_tau, num_pairs) - weight).norm() / weight.norm()), 3)


def alive() -> dict[str, float]:
    weight = samples()["gaussian, 10,000"].requires_grad_()
    found = {}
    for pairs in PAIRS:
        (grad,) = torch.autograd.grad(quantise(weight, initial_log_tau(weight), pairs).sum(), weight)
        found[str(pairs)] = round(float(grad.mean()), 3)
    return found


def sizes() -> dict[str, list[float]]:
    return {
        "nested": [num_bytes(10**6, pairs) / 4e6 for pairs in PAIRS],
        "alone": [num_bytes(10**6, pairs, nested=False) / 4e6 for pairs in PAIRS],
    }


def speed() -> dict[str, float]:
    """Times over that of a product with its gradient, and millions of weights a second."""
    weight = (torch.randn(1000, 1000) / 20).requires_grad_()
    log_tau = initial_log_tau(weight).requires_grad_()
    numbers = codes(weight, log_tau)
    data = pack(numbers)
    runs: dict[str, Callable[[], Any]] = {
        "product": lambda: (weight * log_tau).sum().backward(),  # type: ignore[no-untyped-call]
        "1 pair": lambda: quantise(weight, log_tau, 1).sum().backward(),  # type: ignore[no-untyped-call]
        "4 pairs": lambda: quantise(weight, log_tau).sum().backward(),  # type: ignore[no-untyped-call]
        "4 pairs, sigmoid": lambda: quantise(weight, log_tau, how="sigmoid").sum().backward(),  # type: ignore[no-untyped-call]
        "codes": lambda: codes(weight, log_tau),
        "pack": lambda: pack(numbers),
        "unpack": lambda: unpack(data, numbers.shape),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(15):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(own) for name, own in times.items()}
    ratios = {f"{name} / product": round(median[name] / median["product"], 2) for name in ("1 pair", "4 pairs")}
    ratios["4 pairs, sigmoid / product"] = round(median["4 pairs, sigmoid"] / median["product"], 2)
    return ratios | {f"{name}, million / s": round(1 / median[name]) for name in ("codes", "pack", "unpack")}


def training(norm: bool) -> dict[str, dict[str, float]]:
    ways: list[tuple[How | None, str]] = [(how, start) for how in (None, *HOWS) for start in STARTS]
    scores = {way: averaged([run(*way, norm, seed) for seed in SEEDS]) for way in ways}
    return {f"{how or 'float, quantised after'}, {start} start": found for (how, start), found in scores.items()}


def run(how: How | None, start: str, norm: bool, seed: int) -> dict[str, float]:
    """Train one network, its number of pairs drawn anew in each step; without ``how``, in floating point."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = digits(seed)
    parts = [[nn.Linear(a, b), nn.LayerNorm(b) if norm else nn.Identity(), nn.ReLU()] for a, b in pairwise(WIDTHS)]
    net = nn.Sequential(*(part for layer in parts for part in layer), nn.Linear(WIDTHS[-1], 10))
    log_taus = started(net, start)
    optimiser = torch.optim.Adam([*net.parameters(), *log_taus.values()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(STEPS):
        chosen, pairs = torch.randint(len(x), (64,)), int(torch.randint(1, 5, ()))
        sharpness = min(20.0 * (1 + 100 * step // STEPS), FULL_SHARPNESS)
        optimiser.zero_grad()
        loss = F.cross_entropy(output(net, x[chosen], log_taus, pairs if how else None, how, sharpness), y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    if how is None:
        log_taus = started(net, start)
    scores = {"float": wrong(output(net, test_x, log_taus, None), test_y)} if how is None else {}
    return scores | {str(pairs): wrong(output(net, test_x, log_taus, pairs), test_y) for pairs in PAIRS}


def started(net: nn.Module, start: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(STARTS[start](net.get_parameter(name))) for name in QUANTISED}


def output(
    net: nn.Module,
    x: Tensor,
    log_taus: dict[str, nn.Parameter],
    num_pairs: int | None,
    how: How | None = None,
    sharpness: float = 20.0,
) -> Tensor:
    weights = {}
    if num_pairs is not None:
        for name, log_tau in log_taus.items():
            weight = net.get_parameter(name)
            weights[name] = quantise(weight, log_tau, num_pairs, how=how or "straight_through", sharpness=sharpness)
    result: Tensor = torch.func.functional_call(net, weights, (x,))
    return result


def wrong(logits: Tensor, y: Tensor) -> float:
    return 100 * float((logits.argmax(-1) != y).double().mean())


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def averaged(scores: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(math.fsum(score[key] for score in scores) / len(scores), 2) for key in scores[0]}


if __name__ == "__main__":
    main()
