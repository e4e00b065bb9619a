"""The mathematics: orders over widths, weight posteriors, gates, and the divergences between them."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.distributions.divergences import (
        bernoulli_kl,
        bn3_refitted_regulariser,
        bn3_regulariser,
        categorical_kl,
        gaussian_kl,
        hierarchical_kl,
        kumaraswamy_beta_kl,
        log_uniform_kl,
        molchanov_kl,
        truncated_log_normal_kl,
    )
    from nestling.distributions.gates import (
        BernoulliGate,
        BetaBernoulli,
        ConcreteGate,
        DependentBetaBernoulli,
        Gate,
        GaussianDropoutGate,
        GaussianGate,
        LogNormalGate,
        kumaraswamy_mean,
    )
    from nestling.distributions.gaussians import Pair, Sloped, larger, largest, rectified
    from nestling.distributions.layout import axes_in_memory, laid_out_as
    from nestling.distributions.learned import Learned
    from nestling.distributions.noise import drawn_from, normal_noise, random_signs, stream
    from nestling.distributions.options import SAMPLINGS, PosteriorName, Sampling
    from nestling.distributions.orders import (
        BernoulliChain,
        Downhill,
        Geometric,
        Order,
        Uniform,
        expected_loss,
        kl,
        leave_one_out,
        with_baseline,
    )
    from nestling.distributions.second_derivatives import differentiable_gradients
    from nestling.distributions.temperature import Tempered
    from nestling.distributions.weights import (
        LOG_ALPHA_BOUNDS,
        AdditiveGaussian,
        MultiplicativeGaussian,
        WeightPosterior,
        to_log_alpha,
        to_log_sigma2,
    )

__all__ = [
    "LOG_ALPHA_BOUNDS",
    "AdditiveGaussian",
    "BernoulliChain",
    "BernoulliGate",
    "BetaBernoulli",
    "ConcreteGate",
    "DependentBetaBernoulli",
    "Downhill",
    "Gate",
    "GaussianDropoutGate",
    "GaussianGate",
    "Geometric",
    "LogNormalGate",
    "MultiplicativeGaussian",
    "Order",
    "Uniform",
    "WeightPosterior",
    "bernoulli_kl",
    "bn3_refitted_regulariser",
    "bn3_regulariser",
    "categorical_kl",
    "expected_loss",
    "gaussian_kl",
    "hierarchical_kl",
    "kl",
    "kumaraswamy_beta_kl",
    "kumaraswamy_mean",
    "leave_one_out",
    "log_uniform_kl",
    "molchanov_kl",
    "to_log_alpha",
    "to_log_sigma2",
    "truncated_log_normal_kl",
    "with_baseline",
]

imports_lazily(__name__)
