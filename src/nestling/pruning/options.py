"""What the options of ``prune`` may be, by name, and its recipes: to be had without torch."""

from typing import Literal

from nestling.training import Recipe

MethodName = Literal["sparse_vd", "vbd", "beta_bernoulli", "dependent_beta_bernoulli", "log_normal"]
Structure = Literal["weights", "units"]

PRUNING = Recipe(epochs=100, batch_size=100, lr=1e-3, order_lr=1e-2, lr_warm_up=0.0, kappa=1.0, kl_warm_up=0.1)
"""How a network is pruned unless the caller says otherwise."""
PRETRAINING = Recipe(epochs=20, batch_size=100, lr=1e-3, lr_warm_up=0.0, kappa=0.0)
"""How a network is trained before it is pruned, if that is asked for."""
