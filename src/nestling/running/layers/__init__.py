"""Variational layers: one class per operation, each given a posterior over its weight."""

from nestling.distributions import Sampling
from nestling.running.layers.convert import (
    convert_layers,
    converted_layers,
    default_posterior,
    make_plain,
    make_variational,
    shared_weights,
)
from nestling.running.layers.convolution import (
    VariationalConv1d,
    VariationalConv2d,
    VariationalConv3d,
    VariationalConvolution,
    VariationalConvTranspose1d,
    VariationalConvTranspose2d,
    VariationalConvTranspose3d,
    by_group,
)
from nestling.running.layers.layer import VariationalLayer, mean_name, plain_name, variational_layers
from nestling.running.layers.linear import VariationalLinear
from nestling.running.layers.stochastic import Stochastic, carrying_moments, check_sampling, drawing, sampled_as
from nestling.running.layers.types import LAYERS, LayerType, exact_type, layer_type, sizes_of_weight
