"""How the runs of the tests of pages are nested and trained: small and short."""

from nestling.network import Nesting
from nestling.training import Recipe

FEW = Nesting(num_blocks=4, num_always=1)
QUICK = Recipe(epochs=2, batch_size=64, samples=1, cuts=(0.25, 0.5, 1.0))
