"""The options of ``prune`` and its recipes, in a file that imports no torch."""

from dataclasses import dataclass
from typing import Literal

from nestling.training import Recipe

MethodName = Literal["sparse_vd", "vbd", "beta_bernoulli", "dependent_beta_bernoulli", "log_normal"]
Structure = Literal["weights", "units"]

PRUNING = Recipe(epochs=100, batch_size=100, lr=1e-3, order_lr=1e-2, lr_warm_up=0.0, kappa=1.0, kl_warm_up=0.1)
"""The default recipe for pruning."""
PRETRAINING = Recipe(epochs=20, batch_size=100, lr=1e-3, lr_warm_up=0.0, kappa=0.0)
"""The default recipe for training a network before it is pruned."""


@dataclass(frozen=True)
class Pruning:
    """The options of ``prune`` that a command line can give."""

    method: MethodName = "vbd"
    """The kind of Bayesian dropout; sparse_vd and vbd can also prune weights."""
    structure: Structure | None = None
    """weights or units; the default depends on the method."""
    threshold: float | None = None
    """Limit on log alpha, keep probability or signal-to-noise, by method; by default the papers' value."""
    under: tuple[str, ...] = ()
    """The most that the result may cost: params, macs, bytes (of the file), latency_ms; macs=0.5x is half of before."""
    inputs: bool = False
    """Gate single input features too."""
    where: Literal["inner", "all"] = "inner"
    """Prune only units inside residual branches, or residual streams too."""
    exclude: tuple[str, ...] = ()
    """Modules to leave alone."""
    only: tuple[str, ...] | None = None
    """Groups to gate; all others stay whole."""
    finish: bool = False
    """Train the remaining network for a sixth of the epochs after pruning; allows a lower threshold."""
    tune: bool = False
    """Train the resulting plain network, without noise, for a sixth of the epochs too."""
    output: int | str | None = None
    """Index or key of the tensor to take of what the network returns, by default logits where there are any."""
