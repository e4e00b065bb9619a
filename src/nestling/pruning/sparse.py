"""Linear layers whose weight is mostly zeros: stored as a bit mask or by rows, and run in the faster form."""

import warnings
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.arguments import probability
from nestling.kept_until_written import Kept
from nestling.storage import pack_bits, unpack_bits

FASTER_BELOW = 0.05
"""Share of nonzero weights below which sparse rows are faster than the whole matrix: see benchmarks/sparse.py."""
SMALL_BELOW = 2**17
"""Matrices of fewer entries are always multiplied whole: the sparse call alone costs more than the product."""


class SparseLinear(nn.Module):
    """y = x w^T + b for a weight of which only the nonzero entries are stored.

    ``values`` has them row by row. Their places are in ``mask`` (one bit per entry) or in ``columns`` and ``starts``
    (the column of each, and where each row starts), whichever takes fewer bytes.

    Args:
        weight: The weight (out_features, in_features) with its zeros.
        bias: The bias (out_features,), if there is one.
        as_rows: Multiply sparse rows, or the whole matrix; None takes what is faster for this size and share of zeros.

    Examples:
        >>> from nestling.pruning import SparseLinear
        >>> weight = torch.eye(64)
        >>> layer = SparseLinear(weight)
        >>> torch.equal(layer(torch.ones(2, 64)), torch.ones(2, 64)), layer.num_bytes() < 4 * weight.numel()
        (True, True)
    """

    values: Tensor
    mask: Tensor | None
    columns: Tensor | None
    starts: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, as_rows: bool | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        kept = weight != 0
        num_kept = int(kept.sum())
        self.register_buffer("values", weight.detach()[kept].clone())
        counts = torch.cat([torch.zeros(1, dtype=torch.int64, device=weight.device), kept.sum(1).cumsum(0)])
        columns = kept.nonzero()[:, 1].to(_narrowest(self.in_features))
        by_rows = columns.numel() * columns.element_size() + 4 * len(counts)
        bits = pack_bits(kept)
        as_bits = bits.numel() <= by_rows
        self.register_buffer("mask", bits if as_bits else None)
        self.register_buffer("columns", None if as_bits else columns)
        self.register_buffer("starts", None if as_bits else counts.to(torch.int32))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        few = num_kept < FASTER_BELOW * weight.numel() and weight.numel() >= SMALL_BELOW
        self.as_rows = few if as_rows is None else as_rows
        self._ready = Kept()

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for an input (..., in_features)."""
        weight = self._weight()
        if not self.as_rows:
            return F.linear(x, weight, self.bias)
        flat = x.reshape(-1, self.in_features)
        product = weight @ flat[0] if len(flat) == 1 else (weight @ flat.t()).t()
        product = product if self.bias is None else product + self.bias
        return product.reshape(*x.shape[:-1], self.out_features)

    def dense(self) -> Tensor:
        """The weight (out_features, in_features) with its zeros."""
        weight = self.values.new_zeros(self.out_features, self.in_features)
        weight[self._kept()] = self.values
        return weight

    def num_bytes(self) -> int:
        """Bytes of the stored layer."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())

    def _kept(self) -> Tensor:
        if self.mask is not None:
            return unpack_bits(self.mask, self.out_features * self.in_features).view(self.out_features, -1)
        assert self.columns is not None
        assert self.starts is not None
        kept = torch.zeros(self.out_features, self.in_features, dtype=torch.bool, device=self.values.device)
        rows = torch.repeat_interleave(torch.arange(self.out_features, device=kept.device), self.starts.diff())
        kept[rows, self.columns.long()] = True
        return kept

    def _weight(self) -> Tensor:
        """The weight in the form that is multiplied, rebuilt when a stored tensor has changed."""
        stored = (self.values, self.mask, self.columns, self.starts)
        return self._ready.of((tensor for tensor in stored if tensor is not None), self._build_weight, self.as_rows)

    def _build_weight(self) -> Tensor:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch calls its sparse rows a beta
            return self.dense().to_sparse_csr() if self.as_rows else self.dense()

    def extra_repr(self) -> str:
        """The text that ``print`` shows for the layer."""
        share = self.values.numel() / (self.in_features * self.out_features)
        return f"in_features={self.in_features}, out_features={self.out_features}, left={share:.2%}"


def to_sparse(network: nn.Module, below: float = 0.5) -> nn.Module:
    """A copy of a network whose linear layers are stored sparse where they have many zeros.

    Args:
        network: Any network. It is not changed.
        below: Layers with less than this share of nonzero weights become sparse.

    Returns:
        The copy, with ``SparseLinear`` layers.

    Raises:
        ArgumentError: If the share is not between 0 and 1.

    Examples:
        >>> from nestling.pruning import to_dense, to_sparse
        >>> linear = torch.nn.Linear(8, 4)
        >>> linear.weight.data[:, 2:] = 0
        >>> type(to_sparse(linear)).__name__, type(to_dense(to_sparse(linear))).__name__
        ('SparseLinear', 'Linear')
    """
    probability("below", below)
    copy = nn.ModuleList([deepcopy(network)])
    for path, layer in list(copy.named_modules()):
        if type(layer) is nn.Linear and float((layer.weight != 0).float().mean()) < below:
            copy.set_submodule(path, SparseLinear(layer.weight, layer.bias).train(layer.training))
    return copy[0]


def to_dense(network: nn.Module) -> nn.Module:
    """A copy of a network with plain linear layers instead of sparse ones, as exporters need it.

    Args:
        network: Any network. It is not changed.

    Returns:
        The copy, with ``nn.Linear`` layers, whose zeros are stored.

    Examples:
        >>> from nestling.pruning import SparseLinear, to_dense
        >>> plain = to_dense(torch.nn.Sequential(SparseLinear(torch.eye(3))))
        >>> plain[0].weight.tolist()[0]
        [1.0, 0.0, 0.0]
    """
    copy = nn.ModuleList([deepcopy(network)])
    for path, layer in list(copy.named_modules()):
        if isinstance(layer, SparseLinear):
            plain: nn.Module = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            plain.weight = nn.Parameter(layer.dense())
            if layer.bias is not None:
                plain.bias = nn.Parameter(layer.bias.clone())
            copy.set_submodule(path, plain.train(layer.training))
    return copy[0]


def _narrowest(size: int) -> torch.dtype:
    """The smallest integer type for numbers below ``size``."""
    return torch.uint8 if size <= 2**8 else torch.int16 if size <= 2**15 else torch.int32
