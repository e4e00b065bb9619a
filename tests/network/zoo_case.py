"""The record of one test network, and the words with which the zoo declares it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

BATCH = 2


@dataclass(frozen=True)
class Anchor:
    """One place that carries a size: `tensor` has `rows` entries per unit along `axis`."""

    tensor: str
    axis: int
    rows: int


@dataclass(frozen=True, eq=False)
class Case:
    """A network that can be built by hand at any sizes, and what may be cut in it.

    Every name of `sizes` is in exactly one of these: free (must be found and cut), `frozen` (must stay whole),
    `optional` (may stay whole; if it is cut, the cut must be right), `layers` (residual blocks that may be dropped).
    `inexact` names the sizes with a norm over them. `zeroing` is False where weights are divided by their own norm:
    there the original with zeros in it says nothing, and only the hand-built network is a reference.
    """

    name: str
    build: Callable[..., nn.Module]
    sizes: dict[str, int]
    anchors: dict[str, Anchor]
    example: Callable[[], tuple[Tensor, ...]]
    frozen: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    inexact: frozenset[str] = frozenset()
    kinds: dict[str, str] = field(default_factory=dict)
    exports: bool = True
    zeroing: bool = True

    @property
    def free(self) -> tuple[str, ...]:
        """The sizes that must be found and cut."""
        return tuple(name for name in self.anchors if name not in self.frozen and name not in self.optional)

    @property
    def movable(self) -> tuple[str, ...]:
        """The sizes that may be cut."""
        return tuple(name for name in self.anchors if name not in self.frozen)

    def full(self) -> nn.Module:
        """The network at its full sizes, in float64."""
        return self.build(**self.sizes).double()

    def smaller(self, kept: dict[str, int]) -> nn.Module:
        """The hand-built reference: the sizes in `kept`, the others full."""
        return self.build(**{**self.sizes, **kept}).double()


@dataclass(frozen=True)
class Size:
    """A size as a network declares it: the units, the place that carries them, and what is expected of it."""

    units: int
    tensor: str
    axis: int = 0
    rows: int = 1
    frozen: str = ""
    optional: str = ""
    inexact: bool = False
    kind: str = ""


CASES: list[Case] = []


def network(example, exports=True, zeroing=True, **sizes: Size):
    """Enter the decorated class, or function that builds a module, into the zoo."""

    def enter(build):
        axes = {name: size for name, size in sizes.items() if size.kind != "layer"}
        CASES.append(
            Case(
                name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", build.__name__).lower(),
                build=build,
                sizes={name: size.units for name, size in sizes.items()},
                anchors={name: Anchor(size.tensor, size.axis, size.rows) for name, size in axes.items()},
                example=example,
                frozen={name: size.frozen for name, size in axes.items() if size.frozen},
                optional={name: size.optional for name, size in axes.items() if size.optional},
                layers={name: size.tensor for name, size in sizes.items() if size.kind == "layer"},
                inexact=frozenset(name for name, size in axes.items() if size.inexact),
                kinds={name: size.kind for name, size in axes.items() if size.kind},
                exports=exports,
                zeroing=zeroing,
            )
        )
        return build

    return enter


def normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """An example of one float64 tensor; the same values at every call."""
    return partial(_draw, shape)


def image(channels: int = 3, side: int = 8) -> Callable[[], tuple[Tensor, ...]]:
    """An example of a small batch of square images."""
    return normal(BATCH, channels, side, side)


def tokens(length: int = 5, vocabulary: int = 11) -> Callable[[], tuple[Tensor, ...]]:
    """An example of a small batch of integer sequences."""
    return partial(_draw_tokens, length, vocabulary)


def both(*examples: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
    """An example with the inputs of several examples, one after another."""
    return partial(_join, examples)


def _draw(shape):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64),)


def _draw_tokens(length, vocabulary):
    return (torch.randint(vocabulary, (BATCH, length), generator=torch.Generator().manual_seed(length)),)


def _join(examples):
    return tuple(tensor for example in examples for tensor in example())
