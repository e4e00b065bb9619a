"""``evaluate``: the scores of a network over a data set, at any number of cuts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from torch import Tensor, nn

from nestling.arguments import count
from nestling.errors import ArgumentError, DtypeError
from nestling.prediction.calibration import Calibration
from nestling.prediction.forward_passes import By, CutLike, passes
from nestling.prediction.likelihoods import Likelihood, likelihood_named
from nestling.prediction.predictions import NO_THRESHOLDS
from nestling.prediction.scores import Scores
from nestling.processes import ALONE, Processes, current


@overload
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | None = None,
    samples: int = 6,
    ood: Iterable[Any] | None = None,
    likelihood: str | Likelihood = "categorical",
    calibration: Calibration | None = None,
    num_bins: int = 15,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> Scores: ...


@overload
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: Sequence[CutLike],
    samples: int = 6,
    ood: Iterable[Any] | None = None,
    likelihood: str | Likelihood = "categorical",
    calibration: Sequence[Calibration | None] | None = None,
    num_bins: int = 15,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> list[Scores]: ...


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | Sequence[CutLike] | None = None,
    samples: int = 6,
    ood: Iterable[Any] | None = None,
    likelihood: str | Likelihood = "categorical",
    calibration: Calibration | Sequence[Calibration | None] | None = None,
    num_bins: int = 15,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
) -> Scores | list[Scores]:
    """Score a network over a loader of (inputs, targets), at one cut or at each of a list, which gives a list.

    Every score is of the whole data set and of the distribution averaged over ``samples`` draws of the weights, as
    ``predict`` makes it. ``ood`` is a loader of inputs, or of pairs that begin with them, which the uncertainties
    should tell from ``loader``. ``calibration`` is one, or a list as long as that of the cuts. ``num_bins`` are the
    bins of the reliability curve. With a ``seed`` the draws for a batch follow from it and the batch's number, so that
    a cut scores the same alone as in a list; torch's random state, which threads share, is left to the loader and the
    network's own code. None draws from that state.
    ``spread`` shares the batches among the processes of torch.distributed, each of which must make the call and gets
    the scores of all of them. ``by`` is that of ``predict``.

    For masks of one or several raters, draws should be joint: nest with ``sampling="shared"`` or ``"each"``.
    """
    chosen = likelihood_named(likelihood)
    count("num_bins", num_bins, "how many bins the reliability curve has")
    processes = current() if spread else ALONE

    def score(at: CutLike | None, calibrated: Calibration | None) -> Scores:
        return _scores(model, loader, at, samples, ood, chosen, calibrated, num_bins, seed, processes, by)

    if not isinstance(cut, Sequence):
        if isinstance(calibration, Sequence):
            raise _calibration_error(calibration, "one calibration, for the one cut")
        return score(cut, calibration)
    check_repeatable(loader, "loader", len(cut))
    check_repeatable(ood, "ood", len(cut))
    if calibration is not None and (not isinstance(calibration, Sequence) or len(calibration) != len(cut)):
        raise _calibration_error(calibration, f"a list of {len(cut)}, one for each cut")
    return [score(at, own) for at, own in zip(cut, calibration or [None] * len(cut), strict=True)]


def _scores(
    model: nn.Module,
    loader: Iterable[Any],
    cut: CutLike | None,
    samples: int,
    ood: Iterable[Any] | None,
    chosen: Likelihood,
    calibration: Calibration | None,
    num_bins: int,
    seed: int | None,
    processes: Processes,
    by: By,
) -> Scores:
    """The scores at one cut."""
    temperature = 1.0 if calibration is None else calibration.temperature
    tally = chosen.tally(num_bins, temperature, NO_THRESHOLDS if calibration is None else calibration.thresholds)
    with passes(model, cut, samples, seed, chosen, by) as run:
        if calibration is not None:
            calibration.check(chosen.name, run.cut)
        for number, (x, target) in processes.share(enumerate(pairs(loader))):
            outputs = run(x, number).cpu().double()
            chosen.check(outputs[0], target)
            tally.add(outputs, target)
        for number, x in processes.share(enumerate(_inputs(ood))):
            tally.add_foreign(run(x, number, foreign=True).cpu().double())
    tally.join(processes)
    return tally.scores()


def pairs(loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and targets, of which there must be some; empty batches are passed over."""
    some = False
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
            given = f"a batch that is a {type(batch).__name__}"
            raise DtypeError("loader", given, "pairs (inputs, targets)", "Give the targets as a tensor beside them.")
        if batch[1].numel():
            some = True
            yield batch[0], batch[1].cpu()
    if not some:
        raise ArgumentError("loader", "no example", "at least one", "Pass a loader that is not used up.")


def check_repeatable(loader: Iterable[Any] | None, name: str, times: int) -> None:
    """Refuse an iterator that can be read once only where it must be read several times."""
    if times > 1 and isinstance(loader, Iterator):
        given = f"an iterator for {times} cuts"
        raise DtypeError(name, given, "something that can be read again", "Pass a list of batches or a DataLoader.")


def _inputs(ood: Iterable[Any] | None) -> Iterator[Any]:
    some = ood is None
    for batch in ood or ():
        some = True
        yield batch[0] if isinstance(batch, tuple | list) else batch
    if not some:
        raise ArgumentError("ood", "no batch", "at least one", "Pass a loader that is not used up.")


def _calibration_error(calibration: object, needed: str) -> ArgumentError:
    given = f"a list of {len(calibration)}" if isinstance(calibration, Sequence) else "one calibration"
    return ArgumentError("calibration", given, needed, "A calibration belongs to the cut it was fitted at.")
