"""Means and variances carried through a network, each element as a Gaussian that is independent of others.

A layer with a posterior gives ``Moments`` instead of a draw; to the code of a network they are a tensor, and a rule for
each operation says what becomes of them. An operation without a rule gets draws, one copy of the batch for each. At the
end a pass back along one direction of the outputs says what independence has left out of their variances.
"""

from nestling.running.moments import pooling, rules
from nestling.running.moments.moments import Carrying, Moments, carrying, noted
from nestling.running.moments.sources import Direction, graph_of_means

__all__ = ["Carrying", "Direction", "Moments", "carrying", "graph_of_means", "noted", "pooling", "rules"]
