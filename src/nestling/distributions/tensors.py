"""Registers the tensors of a distribution with its module."""

from torch import Tensor, nn


def register(module: nn.Module, name: str, values: Tensor) -> None:
    """Register ``values``: a Parameter is learned; any other tensor is a buffer and stays differentiable."""
    if isinstance(values, nn.Parameter):
        module.register_parameter(name, values)
    else:
        module.register_buffer(name, values)
