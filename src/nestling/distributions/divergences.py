"""Every divergence of the papers, one function each, in nats and element by element; callers sum, never average."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.arguments import inner_probability, positive_number
from nestling.distributions.special import EULER_GAMMA, log_normal_interval, sech_integral
from nestling.tensor_arguments import floating_tensor


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """Exact KL(N(theta, alpha theta^2) || log-uniform), normalised to vanish as alpha grows (sparse VD; FACTS 4.3).

    KL = int_0^inf [1 - exp(-sech^2(s) / (2 alpha))] ds and dKL/dlog alpha = -x D(x), x = 1/sqrt(2 alpha), D Dawson's
    function. Accurate to 2e-6 in float32 and 1e-12 in float64, and cheaper than the papers' fits.

    Args:
        log_alpha: log alpha of each weight, in any shape.

    Returns:
        The divergence of each weight in nats, in the same shape.

    Examples:
        >>> from nestling.distributions import log_uniform_kl
        >>> log_uniform_kl(torch.tensor([-5.0, 0.0, 20.0])) > 1e-6  # much for a certain weight, none for pure noise
        tensor([ True,  True, False])
    """
    return sech_integral(-floating_tensor("log_alpha", log_alpha))


def molchanov_kl(log_alpha: Tensor) -> Tensor:
    """Molchanov's fit (sparse VD eq. 14), within 9.4e-3 of ``log_uniform_kl``; kept to reproduce published runs.

    Args:
        log_alpha: log alpha of each weight, in any shape.

    Returns:
        The approximate divergence of each weight in nats, in the same shape.

    Examples:
        >>> from nestling.distributions import log_uniform_kl, molchanov_kl
        >>> values = torch.linspace(-8, 8, 50)
        >>> bool((molchanov_kl(values) - log_uniform_kl(values)).abs().max() < 0.01)
        True
    """
    floating_tensor("log_alpha", log_alpha)
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    return k1 * torch.sigmoid(-(k2 + k3 * log_alpha)) - 0.5 * F.logsigmoid(log_alpha)


def bn3_regulariser(log_alpha: Tensor, amplitude: float = 0.7294) -> Tensor:
    """BN3's eq. 20 as its code has it (erratum E6): a **regulariser, not a KL**; negative for alpha above 0.53.

    0.5 log(1 + 1/alpha) - amplitude * exp(-e^a4 (a2 + a3 log alpha)^2) has its minimum at alpha = 2.81 and pulls the
    noise towards it. The released amplitude differs from -KL + 0.6352 by up to 0.134 on its fit range [-5, 0.5];
    ``bn3_refitted_regulariser`` is within 0.0095 there.

    Args:
        log_alpha: log alpha of each weight, in any shape.
        amplitude: The factor of the second term, as released by default.

    Returns:
        The regulariser of each weight, in the same shape.

    Examples:
        >>> from nestling.distributions import bn3_regulariser
        >>> bn3_regulariser(torch.tensor([-3.0, 1.0])) < 0
        tensor([False,  True])
    """
    floating_tensor("log_alpha", log_alpha)
    a2, a3, a4 = -0.2041, 0.3492, 0.5387
    return -0.5 * F.logsigmoid(log_alpha) - amplitude * torch.exp(-math.exp(a4) * (a2 + a3 * log_alpha).square())


def bn3_refitted_regulariser(log_alpha: Tensor) -> Tensor:
    """BN3's form refitted to the exact KL on log alpha in [-5, 0.5] (FACTS 4.4): still a regulariser, not a KL.

    Args:
        log_alpha: log alpha of each weight, in any shape.

    Returns:
        The regulariser of each weight, in the same shape.

    Examples:
        >>> from nestling.distributions import bn3_refitted_regulariser, log_uniform_kl
        >>> values = torch.linspace(-5, 0.5, 50)
        >>> gap = bn3_refitted_regulariser(values) - log_uniform_kl(values)
        >>> bool(gap.max() - gap.min() < 0.02)  # the same up to a constant
        True
    """
    floating_tensor("log_alpha", log_alpha)
    return -0.5 * F.logsigmoid(log_alpha) - 0.5896 * torch.exp(-(-0.2272 + 0.4535 * log_alpha).square())


def hierarchical_kl(log_alpha: Tensor) -> Tensor:
    """0.5 log(1 + 1/alpha): KL(N(theta, alpha theta^2) || N(0, gamma)) at the best gamma, (1 + alpha) theta^2 (VBD).

    Args:
        log_alpha: log alpha of each weight or unit, in any shape.

    Returns:
        The divergence of each in nats, in the same shape.

    Examples:
        >>> from nestling.distributions import hierarchical_kl
        >>> hierarchical_kl(torch.tensor(0.0)).item()  # log(2) / 2
        0.3465...
    """
    return -0.5 * F.logsigmoid(floating_tensor("log_alpha", log_alpha))


def gaussian_kl(mean: Tensor, log_variance: Tensor, prior_std: float) -> Tensor:
    """KL(N(mean, variance) || N(0, prior_std^2)), the scale given as a standard deviation (DBB eq. 23, erratum E36).

    Args:
        mean: Means, in any shape.
        log_variance: Logarithms of the variances, broadcastable to the means.
        prior_std: The standard deviation of the prior.

    Returns:
        The divergence of each entry in nats.

    Raises:
        RangeError: If the standard deviation is not positive.

    Examples:
        >>> from nestling.distributions import gaussian_kl
        >>> gaussian_kl(torch.tensor(1.0), torch.tensor(0.0), prior_std=1.0).item()
        0.5
    """
    positive_number("prior_std", prior_std)
    ratio = torch.exp(log_variance - 2 * math.log(prior_std))
    return 0.5 * (ratio + (mean / prior_std).square() - 1 - log_variance) + math.log(prior_std)


def kumaraswamy_beta_kl(a: Tensor, b: Tensor, c: float) -> Tensor:
    """KL(Kumaraswamy(a, b) || Beta(c, 1)) with c = alpha / K (BB eq. 16, erratum E34).

    (a - c)/a (-gamma - psi(b) - 1/b) + log(ab/c) - (b - 1)/b. psi(b) + 1/b is written psi(1 + b), to avoid cancellation
    for small b.

    Args:
        a: The first shape of the posterior, above zero.
        b: The second one, broadcastable to the first.
        c: The shape of the prior: a small one favours few kept units.

    Returns:
        The divergence of each entry in nats.

    Raises:
        RangeError: If c is not positive.

    Examples:
        >>> from nestling.distributions import kumaraswamy_beta_kl
        >>> abs(kumaraswamy_beta_kl(torch.tensor(2.0), torch.tensor(1.0), c=2.0).item()) < 1e-6  # the same distribution
        True
    """
    positive_number("c", c)
    return (c - a) / a * (EULER_GAMMA + torch.digamma(1 + b)) + a.log() + b.log() - math.log(c) - 1 + 1 / b


def truncated_log_normal_kl(mean: Tensor, log_std: Tensor, low: float, high: float) -> Tensor:
    """KL of log z ~ N(mean, std^2) truncated to [low, high] from the uniform distribution there (SBP).

    Well conditioned for ``mean`` within [low, high]; the gate clamps it to that interval.

    Args:
        mean: The centre of log z before truncation, in any shape.
        log_std: The logarithm of its standard deviation, broadcastable to the mean.
        low: The lower bound of log z.
        high: The upper bound.

    Returns:
        The divergence of each entry in nats.

    Raises:
        RangeError: If the bounds are not in order.

    Examples:
        >>> from nestling.distributions import truncated_log_normal_kl
        >>> wide = truncated_log_normal_kl(torch.tensor(-10.0), torch.tensor(6.0), low=-20.0, high=0.0)
        >>> abs(wide.item()) < 1e-3  # so wide that it is uniform within the bounds
        True
    """
    positive_number("high - low", high - low)
    std = log_std.exp()
    alpha, beta = (low - mean) / std, (high - mean) / std
    log_mass = log_normal_interval(alpha, beta)
    edge = (_normal_moment(alpha) - _normal_moment(beta)) / (2 * log_mass.exp())
    return math.log(high - low) - log_std - log_mass - 0.5 * math.log(2 * math.pi * math.e) - edge


def bernoulli_kl(logits: Tensor, prior_prob: float) -> Tensor:
    """KL(Bernoulli(sigmoid(logits)) || Bernoulli(prior_prob)).

    Args:
        logits: Logits of the posterior, in any shape.
        prior_prob: The probability of the prior, strictly between 0 and 1.

    Returns:
        The divergence of each entry in nats.

    Raises:
        RangeError: If the prior's probability is 0, 1 or outside.

    Examples:
        >>> from nestling.distributions import bernoulli_kl
        >>> bernoulli_kl(torch.tensor([0.0, 30.0]), prior_prob=0.5)  # none, and log(2)
        tensor([0.0000, 0.6931])
    """
    inner_probability("prior_prob", prior_prob)
    on = torch.sigmoid(logits) * (F.logsigmoid(logits) - math.log(prior_prob))
    off = torch.sigmoid(-logits) * (F.logsigmoid(-logits) - math.log1p(-prior_prob))
    return on + off


def categorical_kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """sum_j q_j log(q_j / p_j) over the last axis: BN3's term Phi1 between orders (one KL, erratum E12).

    States with q_j = 0 add nothing; a state with p_j = 0 and q_j > 0 makes the KL infinite.

    Args:
        log_q: Log-probabilities (..., S) of the posterior.
        log_p: Log-probabilities of the prior, broadcastable to them.

    Returns:
        The divergences (...) in nats.

    Examples:
        >>> from nestling.distributions import categorical_kl
        >>> q, p = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
        >>> categorical_kl(q.log(), p.log()).item(), categorical_kl(p.log(), q.log()).item()
        (0.6931..., inf)
    """
    ratio = (log_q - log_p).masked_fill(log_q == -torch.inf, 0)
    return (log_q.exp() * ratio).sum(-1)


def _normal_moment(x: Tensor) -> Tensor:
    """x phi(x) of the standard normal density; zero instead of inf * 0 for large x."""
    x = x.clamp(-40, 40)
    return x * torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
