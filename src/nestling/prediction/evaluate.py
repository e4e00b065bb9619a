"""``evaluate``: the scores of a network over a data set, at any number of cuts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack, overload

from torch import Tensor, nn

from nestling.arguments import count
from nestling.errors import ArgumentError, DtypeError
from nestling.prediction.calibration import Calibration
from nestling.prediction.forward_passes import By, CutLike, Passing, passes
from nestling.prediction.likelihood import Likelihood
from nestling.prediction.likelihoods import likelihood_for
from nestling.prediction.predictions import NO_THRESHOLDS
from nestling.prediction.scores import Scores
from nestling.processes import ALONE, current
from nestling.running import Read, inputs_of, pair_of, read_by


@overload
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | None = None,
    ood: Iterable[Any] | None = None,
    calibration: Calibration | None = None,
    num_bins: int = 15,
    **options: Unpack[Passing],
) -> Scores: ...


@overload
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: Sequence[CutLike],
    ood: Iterable[Any] | None = None,
    calibration: Sequence[Calibration | None] | None = None,
    num_bins: int = 15,
    **options: Unpack[Passing],
) -> list[Scores]: ...


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    cut: CutLike | Sequence[CutLike] | None = None,
    samples: int = 6,
    ood: Iterable[Any] | None = None,
    likelihood: str | Likelihood | None = None,
    calibration: Calibration | Sequence[Calibration | None] | None = None,
    num_bins: int = 15,
    seed: int | None = 0,
    spread: bool = False,
    by: By = "draws",
    batch: Read | None = None,
) -> Scores | list[Scores]:
    """Score a network over a loader of (inputs, targets), at one cut or at each of a list, which gives a list.

    Every score is over the whole data set, and of the distribution averaged over the weight samples. With a ``seed``
    the samples for a batch depend only on the seed and the batch's number, so that a cut scores the same alone as in a
    list. torch's random state, which threads share, is then used only by the loader and the network's own code.

    For masks of one or several raters, samples should be joint: nest with ``sampling="shared"`` or ``"each"``.

    Args:
        model: A nested network, or a plain one.
        loader: Batches of pairs: inputs (B, ...), and targets as the likelihood needs them.
        cut: The cut, or a list of cuts; None for the network's current one.
        samples: Weight samples to average over; 0 for the mean weights.
        ood: A loader of out-of-distribution inputs, or of pairs that begin with them. The scores then say how well each
            uncertainty tells them from ``loader``.
        likelihood: By default the one that the network was trained with, which for numbers answers in the units of the
            targets; ``"categorical"`` for a plain network.
        calibration: One, or a list with one (or None) per cut.
        num_bins: The number of bins of the reliability curve.
        seed: Makes the weight samples reproducible; None draws from torch's random state.
        spread: Share the batches among the processes of torch.distributed. Each of them must make the call, and each
            gets the scores over all batches.
        by: As in ``predict``.
        batch: A function that makes pairs of the batches, if they are none.

    Returns:
        The scores, or one of them per cut.

    Raises:
        ArgumentError: If the loader is empty, can't be read once per cut, or a calibration is of another cut.

    Examples:
        >>> half, whole = nl.evaluate(nested, loader, cut=(0.5, 1.0))
        >>> half.count, 0 <= whole.accuracy <= 1, "ece" in whole.to_dict()
        (144, True, True)
    """
    chosen_likelihood = likelihood_for(model, likelihood)
    loader, ood = read_by(loader, batch), read_by(ood, batch)
    count("num_bins", num_bins, "how many bins the reliability curve has")
    processes = current() if spread else ALONE

    def score(at: CutLike | None, calibrated: Calibration | None) -> Scores:
        temperature = 1.0 if calibrated is None else calibrated.temperature
        thresholds = NO_THRESHOLDS if calibrated is None else calibrated.thresholds
        tally = chosen_likelihood.tally(num_bins, temperature, thresholds)
        with passes(model, at, samples, seed, chosen_likelihood, by) as run:
            if calibrated is not None:
                calibrated.check(chosen_likelihood.name, run.cut)
            for number, (x, target) in processes.share(enumerate(pairs(loader))):
                outputs = run(x, number).cpu().double()
                chosen_likelihood.check(outputs[0], target)
                tally.add(outputs, target)
            for number, x in processes.share(enumerate(_inputs(ood))):
                tally.add_foreign(run(x, number, foreign=True).cpu().double())
        tally.join(processes)
        return tally.scores()

    if not isinstance(cut, Sequence):
        if isinstance(calibration, Sequence):
            raise _calibration_error(calibration, "one calibration, for the one cut")
        return score(cut, calibration)
    check_repeatable(loader, "loader", len(cut))
    check_repeatable(ood, "ood", len(cut))
    if calibration is not None and (not isinstance(calibration, Sequence) or len(calibration) != len(cut)):
        raise _calibration_error(calibration, f"a list of {len(cut)}, one for each cut")
    return [score(at, calibrated) for at, calibrated in zip(cut, calibration or [None] * len(cut), strict=True)]


def pairs(loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and targets; empty batches are skipped, and at least one must have examples."""
    has_examples = False
    for batch in loader:
        inputs, targets = pair_of(batch)
        if targets.numel():
            has_examples = True
            yield inputs, targets.cpu()
    if not has_examples:
        raise ArgumentError("loader", "no example", "at least one", "Pass a loader that is not used up.")


def check_repeatable(loader: Iterable[Any] | None, name: str, times: int) -> None:
    """Raise if an iterator, which can be read only once, would have to be read several times."""
    if times > 1 and isinstance(loader, Iterator):
        given = f"an iterator for {times} cuts"
        raise DtypeError(name, given, "something that can be read again", "Pass a list of batches or a DataLoader.")


def _inputs(ood: Iterable[Any] | None) -> Iterator[Any]:
    has_batches = ood is None
    for batch in ood or ():
        has_batches = True
        yield inputs_of(batch)
    if not has_batches:
        raise ArgumentError("ood", "no batch", "at least one", "Pass a loader that is not used up.")


def _calibration_error(calibration: object, needed: str) -> ArgumentError:
    given = f"a list of {len(calibration)}" if isinstance(calibration, Sequence) else "one calibration"
    return ArgumentError("calibration", given, needed, "A calibration belongs to the cut it was fitted at.")
