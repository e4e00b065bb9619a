"""The sizes that torch's own layers keep beside their tensors, read off the tensors again after a cut."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nestling.torch_parts import ConvNd, ConvTransposeNd, NormBase

Sizes = dict[str, Any]


def sizes_of(module: nn.Module, tensors: Mapping[str, Tensor | None]) -> Sizes:
    """The size attributes a layer has with these tensors in place of its own; none for what is not torch's."""
    for kind, read in _READERS:
        if isinstance(module, kind):
            return read(module, tensors)
    return {}


def matters(name: str) -> bool:
    """Whether a layer computes with the attribute, rather than only printing it."""
    return name in ("groups", "num_groups", "normalized_shape")


def _convolution(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    new = tensors.get("weight")
    if new is None:
        return {}
    transposed = isinstance(module, ConvTransposeNd)
    full = module.in_channels if transposed else module.out_channels
    groups = module.groups * new.shape[0] // full if module.groups > 1 else 1
    if transposed:
        return {"groups": groups, "in_channels": new.shape[0], "out_channels": new.shape[1] * groups}
    return {"groups": groups, "in_channels": new.shape[1] * groups, "out_channels": new.shape[0]}


def _linear(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    return {"in_features": weight.shape[1], "out_features": weight.shape[0]}


def _batch_norm(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    known = [tensors.get(name) for name in ("weight", "running_mean")]
    return next(({"num_features": t.shape[0]} for t in known if t is not None), {})


def _group_norm(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    groups = module.num_groups * weight.shape[0] // module.num_channels if module.num_groups > 1 else 1
    return {"num_groups": groups, "num_channels": weight.shape[0]}


def _layer_norm(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    return {} if weight is None else {"normalized_shape": tuple(weight.shape)}


def _embedding(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    return {"num_embeddings": weight.shape[0], "embedding_dim": weight.shape[1]}


def _prelu(module: Any, tensors: Mapping[str, Tensor | None]) -> Sizes:  # noqa: ANN401
    weight = tensors.get("weight")
    if weight is None:
        return {}
    return {"num_parameters": weight.shape[0]}


_READERS: list[tuple[type | tuple[type, ...], Callable[[Any, Mapping[str, Tensor | None]], Sizes]]] = [
    (ConvNd, _convolution),
    (nn.Linear, _linear),
    (NormBase, _batch_norm),
    (nn.GroupNorm, _group_norm),
    ((nn.LayerNorm, nn.RMSNorm), _layer_norm),
    (nn.Embedding, _embedding),
    (nn.PReLU, _prelu),
]
