"""``predict``: the averaged prediction of a network for some inputs."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nestling.arguments import count
from nestling.errors import ArgumentError
from nestling.prediction.calibration import Calibration
from nestling.prediction.forward_passes import By, CutLike, passes
from nestling.prediction.likelihood import Likelihood
from nestling.prediction.likelihoods import likelihood_for
from nestling.prediction.predictions import NO_THRESHOLDS, Prediction
from nestling.running import examples_of
from nestling.torch_parts import pytree


def predict(
    model: nn.Module,
    x: Any,  # noqa: ANN401
    *,
    cut: CutLike | None = None,
    samples: int = 6,
    likelihood: str | Likelihood | None = None,
    keep_samples: bool = False,
    calibration: Calibration | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    by: By = "draws",
) -> Prediction:
    """Average the distributions that a network predicts under several samples of its weights.

    With ``samples=0``, or without variational layers, the network runs once with its mean weights. If the layers'
    sampling is ``"shared"`` or ``"each"``, a sample is joint over the positions of an example, so that
    ``prediction.samples`` shows whole masks.

    ``by`` is one of three ways:

    - ``"draws"``: each weight sample is drawn as the layers' sampling says.
    - ``"fast_draws"``: about twice as fast. Layers with ``"local"`` sampling draw one weight per batch of more than 16
      examples. For smaller batches they draw one noise value per channel, whose variance is that of an input equal at
      all positions.
    - ``"moments"``: no weight is drawn. Means and variances go through the network once, each element taken as an
      independent Gaussian. A backward pass from the log-odds of the likeliest class measures how much the noise of all
      layers moves them, and sets the variances of an example's outputs (of a batch's outputs, if an example has several
      pixels or numbers). 100 samples of the outputs are averaged. An operation without a rule for moments is named in a
      warning, and runs on ``samples`` samples from there on.

    Args:
        model: A nested network, or a plain one.
        x: Its input for B examples, normalised as in training: a tensor, a tuple of arguments, or a dictionary of
            keyword arguments.
        cut: A fraction, widths by group, or a ``Cut``; None for the network's current one.
        samples: How many weight samples are averaged; 0 for the mean weights.
        likelihood: What an output means; by default what the network was trained with, and ``"categorical"`` for a
            plain network.
        keep_samples: Keep the prediction of each sample, as ``prediction.samples``.
        calibration: Brings a temperature and conformal sets; it must be of this cut.
        batch_size: How many examples run at once; each such batch has its own weight samples. None for all.
        seed: Makes weight samples reproducible; None takes torch's random state.
        by: ``"draws"``, ``"fast_draws"`` or ``"moments"``, as above.

    Returns:
        A ``ClassPrediction`` or a ``RegressionPrediction``, with the uncertainty of each example in two parts.

    Raises:
        ArgumentError: If the cut, the calibration or an option does not fit the network.

    Examples:
        >>> p = nl.predict(nested, images, cut=0.5, samples=10, seed=0)
        >>> tuple(p.probs.shape), tuple(p.entropy.shape), bool((p.epistemic >= 0).all())
        ((100, 10), (100,), True)
    """
    chosen_likelihood = likelihood_for(model, likelihood)
    with passes(model, cut, samples, seed, chosen_likelihood, by) as run:
        if calibration is not None:
            calibration.check(chosen_likelihood.name, run.cut)
        outputs = torch.cat([run(part, number) for number, part in enumerate(_parts(x, batch_size))], 1)
    return chosen_likelihood.predictive(
        outputs,
        temperature=1.0 if calibration is None else calibration.temperature,
        thresholds=NO_THRESHOLDS if calibration is None else calibration.thresholds,
        keep_samples=keep_samples,
    )


def _parts(x: Any, batch_size: int | None) -> Iterator[Any]:  # noqa: ANN401
    """The input in parts of ``batch_size``, cut along the first axis of every tensor that has the batch there."""
    if batch_size is None:
        yield x
        return
    count("batch_size", batch_size, "how many examples to run at once")
    total = next((leaf.shape[0] for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.ndim), None)
    if total is None:
        raise ArgumentError("x", "no tensor with a batch axis", "one that has it", "Leave batch_size out.")
    for start in range(0, max(total, 1), batch_size):
        yield examples_of(x, slice(start, start + batch_size), total)
