"""``predict``: the averaged prediction of a network for some inputs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nestling.arguments import count
from nestling.errors import ArgumentError
from nestling.prediction.calibration import Calibration
from nestling.prediction.forward_passes import By, CutLike, passes
from nestling.prediction.likelihoods import Likelihood, likelihood_named
from nestling.prediction.predictions import NO_THRESHOLDS, Prediction
from nestling.torch_parts import pytree


def predict(
    model: nn.Module,
    x: Any,  # noqa: ANN401
    *,
    cut: CutLike | None = None,
    samples: int = 6,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = False,
    calibration: Calibration | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    by: By = "draws",
) -> Prediction:
    """Average the distributions that a network predicts under ``samples`` draws of its weights.

    ``model`` is nested, and runs at ``cut`` (None: its current one), or plain. ``x`` is what it is called with: a
    tensor, a tuple of arguments, or a dictionary of keyword arguments. ``samples=0`` uses the mean weights, once; so
    does a network without variational layers. The draws are joint over the positions of an example, and
    ``prediction.samples`` shows whole masks, if the layers' sampling is ``"shared"`` or ``"each"``.

    ``calibration`` brings a temperature and conformal sets. ``batch_size`` bounds how many examples run at once, each
    such batch with draws of its own. ``seed`` makes the draws reproducible; None takes torch's random state.

    ``by`` is ``"draws"``; ``"fast_draws"``, for which layers with ``"local"`` sampling draw one weight for a batch of
    more than 16, and one number a channel for a smaller one, evenly, at about half the time; or ``"moments"``: no
    weight is drawn, but means and variances go through the network once, each element a Gaussian independent of the
    others; a pass back says how far the noise of all layers moves what decides (the log-odds of the likeliest class),
    which sets the variances of an example's outputs (of a batch's, for several pixels or numbers); and 100 draws of the
    outputs are averaged. An operation without a rule for moments is named in a warning, and ``samples`` draws are made
    from there on.
    """
    chosen = likelihood_named(likelihood)
    with passes(model, cut, samples, seed, chosen, by) as run:
        if calibration is not None:
            calibration.check(chosen.name, run.cut)
        outputs = torch.cat([run(part, number) for number, part in enumerate(_parts(x, batch_size))], 1)
    return chosen.predictive(
        outputs,
        temperature=1.0 if calibration is None else calibration.temperature,
        thresholds=NO_THRESHOLDS if calibration is None else calibration.thresholds,
        keep_samples=keep_samples,
    )


def _parts(x: Any, batch_size: int | None) -> Iterator[Any]:  # noqa: ANN401
    """Pieces of every tensor that has the batch as its first axis."""
    if batch_size is None:
        yield x
        return
    count("batch_size", batch_size, "how many examples to run at once")
    total = next((leaf.shape[0] for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.ndim), None)
    if total is None:
        raise ArgumentError("x", "no tensor with a batch axis", "one that has it", "Leave batch_size out.")
    for start in range(0, max(total, 1), batch_size):
        part = slice(start, start + batch_size)
        yield pytree.tree_map_only(Tensor, partial(_part, part=part, total=total), x)


def _part(tensor: Tensor, part: slice, total: int) -> Tensor:
    return tensor[part] if tensor.ndim and tensor.shape[0] == total else tensor
