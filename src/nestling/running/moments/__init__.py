"""Means and variances carried through a network, each element as a Gaussian, independent of the others.

A layer with a posterior returns ``Moments`` instead of a draw. The code of a network treats them as a tensor, and a
rule per operation computes the moments of its result. An operation without a rule gets draws: one copy of the batch per
draw. At the end a backward pass along one direction of the outputs corrects their variances for the dependence that the
rules leave out.
"""

from nestling.running.moments import pooling, rules
from nestling.running.moments.moments import (
    Carrying,
    Moments,
    carrying,
    corrected,
    drawn_outputs,
    in_pairs,
    register_noise,
)
from nestling.running.moments.rules import scale_and_shift
from nestling.running.moments.sources import Direction, arriving, graph_of_means
