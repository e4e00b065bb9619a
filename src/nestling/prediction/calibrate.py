"""``calibrate``: fits a temperature and conformal thresholds on validation data, for any number of cuts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Unpack, overload

import torch
from torch import Tensor, nn

from nestling.arguments import inner_probability
from nestling.errors import RangeError
from nestling.prediction.calibration import Calibration
from nestling.prediction.evaluate import check_repeatable, pairs
from nestling.prediction.forward_passes import By, CutLike, Passing, passes
from nestling.prediction.likelihood import Likelihood
from nestling.prediction.likelihoods import likelihood_for
from nestling.processes import ALONE, Processes, current
from nestling.running import Read, read_by

TEMPERATURES = (0.05, 20.0)
"""The range that is searched: data on which a network makes no mistake would drive the temperature to zero."""
ELEMENTS_PER_EXAMPLE = 1024
"""The largest number of pixels used per image."""


@overload
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | None = None,
    coverage: float | Sequence[float] = 0.9,
    **options: Unpack[Passing],
) -> Calibration: ...


@overload
def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: Sequence[CutLike],
    coverage: float | Sequence[float] = 0.9,
    **options: Unpack[Passing],
) -> list[Calibration]: ...


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | Sequence[CutLike] | None = None,
    samples: int = 6,
    likelihood: str | Likelihood | None = None,
    coverage: float | Sequence[float] = 0.9,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
    batch: Read | None = None,
) -> Calibration | list[Calibration]:
    """Fit a calibration on a loader of (inputs, targets) that training has not seen; a list of cuts gives a list.

    The temperature minimises the negative log-likelihood of the averaged distribution. It is applied to each sample
    before the average. With the temperature, conformal sets contain the true target with probability ``coverage`` or
    more, on average over examples from the loader's distribution. For images the average is over pixels, and the
    guarantee is approximate, since the pixels of an image are not independent.

    Args:
        model: A nested network, or a plain one.
        loader: Batches of pairs, read once per cut.
        cut: The cut, or a list of cuts; None for the network's current one.
        samples: Weight samples to average over; use as many in ``predict``.
        likelihood: By default the one that the network was trained with.
        coverage: One probability below 1, or several.
        seed: Makes the weight samples reproducible; None draws from torch's random state.
        spread: Share the batches among the processes of torch.distributed, each of which must make the call.
        by: As in ``predict``.
        batch: A function that makes pairs of the batches, if they are none.

    Returns:
        The calibration, or one per cut.

    Raises:
        ArgumentError: If there are too few examples for a coverage, or a coverage is not between 0 and 1.

    Examples:
        >>> calibrations = nl.calibrate(nested, loader, cut=(0.5, 1.0), coverage=0.9)
        >>> p = nl.predict(nested, images, cut=0.5, calibration=calibrations[0])
        >>> tuple(p.sets(0.9).shape)
        (100, 10)
    """
    loader = read_by(loader, batch)
    chosen_likelihood = likelihood_for(model, likelihood)
    coverages = coverages_of(coverage)
    processes = current() if spread else ALONE

    def fit(at: CutLike | None) -> Calibration:
        rows: dict[int, tuple[Tensor, Tensor]] = {}
        num_examples = 0
        with passes(model, at, samples, seed, chosen_likelihood, by) as run:
            for number, (x, target) in enumerate(pairs(loader)):
                num_examples += len(target)
                if number % processes.count == processes.rank:
                    outputs = run(x, number).cpu().double()
                    chosen_likelihood.check(outputs[0], target)
                    rows[number] = chosen_likelihood.rows(outputs, target, ELEMENTS_PER_EXAMPLE)
        outputs, targets = _of_all(rows, processes)
        temperature = fit_temperature(chosen_likelihood, outputs, targets)
        scores = chosen_likelihood.predictive(outputs, temperature=temperature).nonconformity(targets).flatten()
        thresholds = conformal_thresholds(scores, coverages)
        return Calibration(temperature, thresholds, num_examples, chosen_likelihood.name, samples, run.cut)

    if not isinstance(cut, Sequence):
        return fit(cut)
    check_repeatable(loader, "loader", len(cut))
    return [fit(at) for at in cut]


def _of_all(rows: dict[int, tuple[Tensor, Tensor]], processes: Processes) -> tuple[Tensor, Tensor]:
    """The outputs (S, n, ...) and targets (n, ...) of all processes, in the order of the batches."""
    tensors = {f"{number} {name}": t for number, pair in rows.items() for name, t in zip("ot", pair, strict=True)}
    gathered: dict[str, Tensor] = {}
    for shared in processes.gather_tensors(tensors):
        gathered |= shared
    numbers = range(len(gathered) // 2)
    return torch.cat([gathered[f"{n} o"] for n in numbers], 1), torch.cat([gathered[f"{n} t"] for n in numbers])


def fit_temperature(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> float:
    """The temperature that minimises the negative log-likelihood of outputs (S, n, ...); 1 if none is better."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        prediction = likelihood.predictive(outputs, temperature=math.exp(log_temperature))
        return -float(prediction.log_prob(targets).mean())

    low, high = (math.log(end) for end in TEMPERATURES)
    best = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-5})
    return math.exp(best.x) if best.fun < loss(0.0) else 1.0


def coverages_of(coverage: float | Sequence[float]) -> tuple[float, ...]:
    """One or several coverages, each of which must lie between 0 and 1."""
    coverages = tuple(coverage) if isinstance(coverage, Sequence) else (coverage,)
    for wanted in coverages:
        inner_probability("coverage", wanted)
    return coverages


def conformal_thresholds(scores: Tensor, coverages: Sequence[float]) -> dict[float, float]:
    """For each coverage the largest nonconformity within a set, from the scores (n,) of examples."""
    return {coverage: conformal_threshold(scores, coverage) for coverage in coverages}


def conformal_threshold(scores: Tensor, coverage: float) -> float:
    """The ceil((n + 1) coverage)-th smallest of n scores: the quantile that guarantees coverage for finite n."""
    num = scores.numel()
    rank = math.ceil(round((num + 1) * coverage, 9))
    if rank > num:
        num_needed = math.ceil(round(coverage / (1 - coverage), 9))
        needed = f"at most {num / (num + 1):.4g} with {num} examples"
        raise RangeError("coverage", coverage, needed, f"Calibrate on at least {num_needed} examples, or ask for less.")
    return float(scores.kthvalue(rank).values)
