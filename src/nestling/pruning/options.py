"""The options of ``prune``, and its recipes: to be had without torch."""

from dataclasses import dataclass
from typing import Literal

from nestling.training import Recipe

MethodName = Literal["sparse_vd", "vbd", "beta_bernoulli", "dependent_beta_bernoulli", "log_normal"]
Structure = Literal["weights", "units"]

PRUNING = Recipe(epochs=100, batch_size=100, lr=1e-3, order_lr=1e-2, lr_warm_up=0.0, kappa=1.0, kl_warm_up=0.1)
"""How a network is pruned unless the caller says otherwise."""
PRETRAINING = Recipe(epochs=20, batch_size=100, lr=1e-3, lr_warm_up=0.0, kappa=0.0)
"""How a network is trained before it is pruned, if that is asked for."""


@dataclass(frozen=True)
class Pruning:
    """The options of ``prune`` that a command line can give."""

    method: MethodName = "vbd"
    """Which Bayesian dropout; sparse_vd and vbd prune weights too."""
    structure: Structure | None = None
    """weights or units; by default the method's own."""
    threshold: float | None = None
    """What is kept: log alpha, keep probability or signal-to-noise by method; none for the papers'."""
    inputs: bool = False
    """Gate single input features too."""
    where: Literal["inner", "all"] = "inner"
    """Prune only what stays inside a block, or residual streams too."""
    exclude: tuple[str, ...] = ()
    """Modules to leave alone."""
    only: tuple[str, ...] | None = None
    """Groups to gate; all others stay whole."""
    finish: bool = False
    """Train what is left for a sixth of the epochs when the rest is gone; allows a lower threshold."""
    tune: bool = False
    """Train the plain network that results, without noise, for a sixth of the epochs too."""
