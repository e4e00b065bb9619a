"""The registry of layers: all that the library knows about each layer type of torch (or a user)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import Sampling, WeightPosterior
from nestling.running.layers import convolution
from nestling.running.layers.layer import VariationalLayer
from nestling.running.layers.linear import VariationalLinear
from nestling.running.layers.transposed_linear import VariationalTransposedLinear
from nestling.torch_parts import ConvNd, ConvTransposeNd, NormBase

Tensors = Mapping[str, Tensor | None]
Sizes = dict[str, Any]


@dataclass(frozen=True)
class LayerType:
    """How layers of a type are cut, quantised, gated and folded, and given a posterior.

    ``variational`` and ``reads`` depend on the code of a layer: they hold for the type alone. The other fields hold for
    its subclasses too.
    """

    sizes: Callable[[Any, Tensors], Sizes] = lambda layer, tensors: {}
    """The size attributes of a layer, given other tensors for it."""
    computes_with: tuple[str, ...] = ()
    """The size attributes that the layer computes with, such as counts of groups; the others are only printed."""
    variational: Callable[[Any, WeightPosterior, Sampling], VariationalLayer] | None = None
    """Makes the variational layer from a plain layer and a posterior."""
    reads: tuple[int, int] | None = None
    """The axis of the weight that reads the input, and the axis of the input that is read; such inputs can be gated."""
    is_quantised: bool = False
    """Whether nested bits quantise its weight."""
    is_folded: bool = False
    """Whether constant inputs can be folded into its bias, if nothing is padded."""
    is_norm: bool = False
    """Whether its output does not depend on the scale of its input."""


def layer_type(layer: nn.Module) -> LayerType:
    """The registered type of a layer: that of its class, or of the nearest registered parent class."""
    named = (_LAYERS_BY_NAME.get(_name_of(kind)) or LAYERS.get(kind) for kind in type(layer).__mro__)
    return next((found for found in named if found is not None), _UNKNOWN)


def exact_type(layer: nn.Module) -> LayerType:
    """The registered type of a layer's class, without its parent classes: a subclass may run other code."""
    return _LAYERS_BY_NAME.get(_name_of(type(layer))) or LAYERS.get(type(layer), _UNKNOWN)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _convolution_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    transposed = isinstance(layer, ConvTransposeNd)
    full = layer.in_channels if transposed else layer.out_channels
    groups = layer.groups * weight.shape[0] // full if layer.groups > 1 else 1
    if transposed:
        return {"groups": groups, "in_channels": weight.shape[0], "out_channels": weight.shape[1] * groups}
    return {"groups": groups, "in_channels": weight.shape[1] * groups, "out_channels": weight.shape[0]}


def _batch_norm_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    candidates = [tensors.get(name) for name in ("weight", "running_mean")]
    return next(({"num_features": tensor.shape[0]} for tensor in candidates if tensor is not None), {})


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
    """A function for attributes that are the sizes of the weight, from its first axis on."""

    def sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
        weight = tensors.get("weight")
        return {} if weight is None else dict(zip(names, weight.shape, strict=False))

    return sizes


def _recurrent_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    reading, repeating = tensors.get("weight_ih_l0"), tensors.get("weight_hh_l0")
    if reading is None or repeating is None or layer.proj_size:
        return {}
    return {"input_size": reading.shape[1], "hidden_size": repeating.shape[1]}


def _convolution_type(convolution_class: "type[convolution.VariationalConvolution]") -> LayerType:
    return LayerType(
        _convolution_sizes,
        ("groups",),
        convolution_class.from_plain,
        reads=(0 if convolution_class.transposed else 1, 1),
        is_quantised=True,
        is_folded=not convolution_class.transposed,
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
    nn.RNNBase: LayerType(_recurrent_sizes, ("input_size", "hidden_size")),
    nn.PReLU: LayerType(sizes_of_weight("num_parameters")),
}
"""Every layer type for which the rules of the graph, which know only operations, are not enough."""


def _transposed_sizes(layer: Any, tensors: Tensors) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    return {} if weight is None else {"nx": weight.shape[0], "nf": weight.shape[1]}


_LAYERS_BY_NAME = {
    "transformers.pytorch_utils.Conv1D": LayerType(
        _transposed_sizes,
        ("nf",),
        variational=VariationalTransposedLinear.from_plain,
        reads=(0, -1),
        is_quantised=True,
    ),
}
"""Layer types of libraries that need not be installed, by the full name of their class."""
