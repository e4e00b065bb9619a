"""Gates: stochastic multipliers for the units of a layer, without an order among them."""

from nestling.distributions.gates.beta_bernoulli import BetaBernoulli, kumaraswamy_mean
from nestling.distributions.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from nestling.distributions.gates.gate import Gate, gates_of
from nestling.distributions.gates.gaussian import GaussianGate
from nestling.distributions.gates.log_normal import LogNormalGate
from nestling.distributions.gates.plain import BernoulliGate, ConcreteGate, GaussianDropoutGate

__all__ = [
    "BernoulliGate",
    "BetaBernoulli",
    "ConcreteGate",
    "DependentBetaBernoulli",
    "Gate",
    "GaussianDropoutGate",
    "GaussianGate",
    "LogNormalGate",
    "gates_of",
    "kumaraswamy_mean",
]
