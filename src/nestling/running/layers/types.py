"""The registry of layers: for each type of torch's (or yours) all that the library knows of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import Sampling, WeightPosterior
from nestling.running.layers import convolution
from nestling.running.layers.layer import VariationalLayer
from nestling.running.layers.linear import VariationalLinear
from nestling.torch_parts import ConvNd, ConvTransposeNd, NormBase

Tensors = Mapping[str, Tensor | None]
Sizes = dict[str, Any]


@dataclass(frozen=True)
class LayerType:
    """What a type of layers is, for whoever cuts, quantises, gates or folds it, or gives it a posterior.

    Its code is known for the type itself alone (``variational``, ``reads``), the rest for its subclasses too.
    """

    sizes: Callable[[Any, Tensors], Sizes] = lambda layer, tensors: {}
    """The size attributes of a layer with some tensors in place of its own."""
    computes_with: tuple[str, ...] = ()
    """Those that it computes with, rather than only prints: counts of groups."""
    variational: Callable[[Any, WeightPosterior, Sampling], VariationalLayer] | None = None
    """Makes the layer with a posterior over its weight."""
    reads: tuple[int, int] | None = None
    """The axis of the weight that reads, and that of the input which it reads along: its input can be gated."""
    is_quantised: bool = False
    """Whether nested bits quantise its weight."""
    is_folded: bool = False
    """Whether an input that is constant can go into its bias, where it does not look past edges."""
    is_norm: bool = False
    """Whether it undoes a change of its input's scale."""


def layer_type(layer: nn.Module) -> LayerType:
    """What is known of a layer by its class, or the nearest class above that is known."""
    return next((LAYERS[own] for own in type(layer).__mro__ if own in LAYERS), _UNKNOWN)


def exact_type(layer: nn.Module) -> LayerType:
    """What is known of a layer whose code is that of its class; nothing for a subclass, which may do something else."""
    return LAYERS.get(type(layer), _UNKNOWN)


def _convolution_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    new = tensors.get("weight")
    if new is None:
        return {}
    transposed = isinstance(layer, ConvTransposeNd)
    full = layer.in_channels if transposed else layer.out_channels
    groups = layer.groups * new.shape[0] // full if layer.groups > 1 else 1
    if transposed:
        return {"groups": groups, "in_channels": new.shape[0], "out_channels": new.shape[1] * groups}
    return {"groups": groups, "in_channels": new.shape[1] * groups, "out_channels": new.shape[0]}


def _batch_norm_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    known = [tensors.get(name) for name in ("weight", "running_mean")]
    return next(({"num_features": t.shape[0]} for t in known if t is not None), {})


def _group_norm_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    groups = layer.num_groups * weight.shape[0] // layer.num_channels if layer.num_groups > 1 else 1
    return {"num_groups": groups, "num_channels": weight.shape[0]}


def _layer_norm_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    return {} if weight is None else {"normalized_shape": tuple(weight.shape)}


def sizes_of_weight(*names: str) -> Callable[[Any, Tensors], Sizes]:
    """Attributes that are the sizes of the weight, from its first axis on."""

    def sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
        weight = tensors.get("weight")
        return {} if weight is None else dict(zip(names, weight.shape, strict=False))

    return sizes


def _convolution_type(own: "type[convolution.VariationalConvolution]") -> LayerType:
    return LayerType(
        _convolution_sizes,
        ("groups",),
        own.from_plain,
        reads=(0 if own.transposed else 1, 1),
        is_quantised=True,
        is_folded=not own.transposed,
    )


_UNKNOWN = LayerType()
LAYERS: dict[type[nn.Module], LayerType] = {
    nn.Linear: LayerType(
        sizes_of_weight("out_features", "in_features"),
        variational=VariationalLinear.from_plain,
        reads=(1, -1),
        is_quantised=True,
        is_folded=True,
    ),
    ConvNd: LayerType(_convolution_sizes, ("groups",), is_quantised=True),
    nn.Conv1d: _convolution_type(convolution.VariationalConv1d),
    nn.Conv2d: _convolution_type(convolution.VariationalConv2d),
    nn.Conv3d: _convolution_type(convolution.VariationalConv3d),
    nn.ConvTranspose1d: _convolution_type(convolution.VariationalConvTranspose1d),
    nn.ConvTranspose2d: _convolution_type(convolution.VariationalConvTranspose2d),
    nn.ConvTranspose3d: _convolution_type(convolution.VariationalConvTranspose3d),
    NormBase: LayerType(_batch_norm_sizes, is_norm=True),
    nn.GroupNorm: LayerType(_group_norm_sizes, ("num_groups",), is_norm=True),
    nn.LayerNorm: LayerType(_layer_norm_sizes, ("normalized_shape",), is_norm=True),
    nn.RMSNorm: LayerType(_layer_norm_sizes, ("normalized_shape",), is_norm=True),
    nn.Embedding: LayerType(sizes_of_weight("num_embeddings", "embedding_dim")),
    nn.PReLU: LayerType(sizes_of_weight("num_parameters")),
}
"""Every type of layers that is more to the library than its operations, which the rules of the graph know."""
