"""What a file with uncertainty answers, as a tuple of tensors with names."""

from torch import Tensor

from nestling.prediction import Likelihood

_PARTS = ("aleatoric", "epistemic")


def answer_names(likelihood: Likelihood) -> tuple[str, ...]:
    """The names of what ``answers`` gives: those of a prediction of classes, or of numbers."""
    return ("probs", "entropy", *_PARTS) if likelihood.targets == "classes" else ("mean", "std", *_PARTS)


def answers(likelihood: Likelihood, outputs: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """The averaged prediction of outputs (S, B, ...), with its uncertainty and the two parts of it.

    For classes ``probs`` (B, C, ...), then ``entropy``, ``aleatoric`` and ``epistemic`` (B, ...), in nats; for numbers
    ``mean`` and ``std`` (B, D, ...), then both parts as variances.
    """
    prediction = likelihood.predictive(outputs, temperature=temperature)
    return tuple(getattr(prediction, name) for name in answer_names(likelihood))
