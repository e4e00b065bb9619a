"""The mathematics of averaged predictions: mean probabilities, entropies, and the Gaussian density."""

import math

import torch
from torch import Tensor


def mean_log_probs(log_probs: Tensor) -> Tensor:
    """The logarithm of the mean probability over the first axis: probabilities are averaged, never logits."""
    return log_probs.logsumexp(0) - log_probs.new_full((), log_probs.shape[0]).log()


def entropy(log_probs: Tensor, axis: int) -> Tensor:
    """Entropy in nats of the distributions along an axis."""
    terms: Tensor = torch.special.entr(log_probs.exp())
    return terms.sum(axis)


def normal_log_prob(target: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Log-density of a Gaussian, from the logarithm of its variance."""
    squared = (target - mean).square() * torch.exp(-log_variance)
    return -0.5 * (squared + log_variance + math.log(2 * math.pi))
