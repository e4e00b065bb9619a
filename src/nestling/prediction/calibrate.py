"""``calibrate``: fits a temperature and conformal thresholds on validation data, for any number of cuts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from nestling.arguments import inner_probability
from nestling.errors import RangeError
from nestling.prediction.calibration import Calibration
from nestling.prediction.evaluate import check_repeatable, pairs
from nestling.prediction.forward_passes import By, CutLike, passes
from nestling.prediction.likelihoods import Likelihood, likelihood_named
from nestling.processes import ALONE, Processes, current

TEMPERATURES = (0.05, 20.0)
"""The range that is searched: data on which a network makes no mistake would drive the temperature to zero."""
ELEMENTS_PER_EXAMPLE = 1024
"""How many pixels of each image are used at most."""


@overload
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | None = None,
    samples: int = 6,
    likelihood: str | Likelihood = "categorical",
    coverage: float | Sequence[float] = 0.9,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> Calibration: ...


@overload
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: Sequence[CutLike],
    samples: int = 6,
    likelihood: str | Likelihood = "categorical",
    coverage: float | Sequence[float] = 0.9,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> list[Calibration]: ...


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | Sequence[CutLike] | None = None,
    samples: int = 6,
    likelihood: str | Likelihood = "categorical",
    coverage: float | Sequence[float] = 0.9,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> Calibration | list[Calibration]:
    """Fit a calibration on a loader of (inputs, targets) that training has not seen; a list of cuts gives a list.

    The temperature minimises the negative log-likelihood of the averaged distribution, and applies to each draw before
    the average. With it, conformal sets hold the truth with probability ``coverage`` or more, on average over examples
    that come from where the loader's do; of images, on average over pixels, and approximately, since the pixels of
    an image are not independent. ``spread`` is that of ``evaluate``, ``by`` that of ``predict``.
    """
    chosen = likelihood_named(likelihood)
    wanted = tuple(coverage) if isinstance(coverage, Sequence) else (coverage,)
    for share in wanted:
        inner_probability("coverage", share)

    def fit(at: CutLike | None) -> Calibration:
        return _fit(model, loader, at, samples, chosen, wanted, seed, current() if spread else ALONE, by)

    if not isinstance(cut, Sequence):
        return fit(cut)
    check_repeatable(loader, "loader", len(cut))
    return [fit(at) for at in cut]


def _fit(
    model: nn.Module,
    loader: Iterable[Any],
    cut: CutLike | None,
    samples: int,
    chosen: Likelihood,
    coverages: Sequence[float],
    seed: int | None,
    processes: Processes,
    by: By,
) -> Calibration:
    """The calibration at one cut."""
    rows: dict[int, tuple[Tensor, Tensor]] = {}
    num_examples = 0
    with passes(model, cut, samples, seed, chosen, by) as run:
        for number, (x, target) in enumerate(pairs(loader)):
            num_examples += len(target)
            if number % processes.count == processes.rank:
                outputs = run(x, number).cpu().double()
                chosen.check(outputs[0], target)
                rows[number] = chosen.rows(outputs, target, ELEMENTS_PER_EXAMPLE)
        at = run.cut
    outputs, targets = _of_all(rows, processes)
    temperature = fit_temperature(chosen, outputs, targets)
    scores = chosen.predictive(outputs, temperature=temperature).nonconformity(targets).flatten()
    thresholds = {coverage: conformal_threshold(scores, coverage) for coverage in coverages}
    return Calibration(temperature, thresholds, num_examples, chosen.name, samples, at)


def _of_all(rows: dict[int, tuple[Tensor, Tensor]], processes: Processes) -> tuple[Tensor, Tensor]:
    """The outputs (S, n, ...) and targets (n, ...) that all processes have, in the order of the batches."""
    own = {f"{number} {name}": t for number, pair in rows.items() for name, t in zip("ot", pair, strict=True)}
    found: dict[str, Tensor] = {}
    for each in processes.gather_tensors(own):
        found |= each
    numbers = range(len(found) // 2)
    return torch.cat([found[f"{n} o"] for n in numbers], 1), torch.cat([found[f"{n} t"] for n in numbers])


def fit_temperature(chosen: Likelihood, outputs: Tensor, targets: Tensor) -> float:
    """The temperature that minimises the negative log-likelihood of outputs (S, n, ...); 1 if none is better."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        prediction = chosen.predictive(outputs, temperature=math.exp(log_temperature))
        return -float(prediction.log_prob(targets).mean())

    low, high = (math.log(end) for end in TEMPERATURES)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x) if found.fun < loss(0.0) else 1.0


def conformal_threshold(scores: Tensor, coverage: float) -> float:
    """The ceil((n + 1) coverage)-th smallest of n scores: the quantile with which coverage holds for finite n."""
    num = scores.numel()
    rank = math.ceil(round((num + 1) * coverage, 9))
    if rank > num:
        least = math.ceil(round(coverage / (1 - coverage), 9))
        needed = f"at most {num / (num + 1):.4g} with {num} examples"
        raise RangeError("coverage", coverage, needed, f"Calibrate on at least {least} examples, or ask for less.")
    return float(scores.kthvalue(rank).values)
