"""Random networks from a small grammar: a program of steps is drawn by hypothesis and built as a plain module.

A step says what to do with what is there, whatever its width, so that every drawn program builds and shrinks well;
a step that does not fit (three groups of eight channels) is built as the nearest one that does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Step = tuple
SIDE = 8
CLASSES = 3
ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU}
OVER_THE_AXIS = {"one_group", "layer_norm", "rms_norm"}
MAY_FREEZE = {"grouped", "shuffle", "chunk", "whole_groups"}


@dataclass(frozen=True)
class Program:
    """A stem, steps on images, a way to a vector, steps on the vector; a last linear layer follows."""

    stem: int
    image: tuple[Step, ...]
    flatten: bool
    vector: tuple[Step, ...]

    @property
    def words(self) -> set[str]:
        """The steps that occur."""
        return {step[0] for step in self.image + self.vector}

    @property
    def exact(self) -> bool:
        """Whether no norm takes its statistics over an axis that can be cut."""
        return not self.words & OVER_THE_AXIS

    @property
    def simple(self) -> bool:
        """Whether nothing in it gives a lawful reason to freeze, so that every inner axis must be free."""
        return not self.words & MAY_FREEZE


def programs() -> st.SearchStrategy[Program]:
    """Programs of 4 to 10 operations, stem and way to the vector counted."""
    width = st.integers(2, 6)
    activation = st.tuples(st.just("activation"), st.sampled_from(sorted(ACTIVATIONS)))
    image = st.one_of(
        activation,
        st.tuples(st.just("conv"), width, st.sampled_from([1, 3])),
        st.tuples(st.just("batch_norm")),
        st.tuples(st.just("pool"), st.sampled_from(["max", "average"])),
        st.tuples(st.just("residual"), width),
        st.tuples(st.just("concat"), width),
        st.tuples(st.just("depthwise"), st.integers(1, 2)),
        st.tuples(st.just("grouped"), st.integers(2, 3), st.integers(1, 2)),
        st.tuples(st.just("excite"), width),
        st.tuples(st.just("chunk")),
        st.tuples(st.just("shuffle"), st.integers(2, 3)),
        st.tuples(st.sampled_from(["one_group", "whole_groups", "instance"])),
    )
    vector = st.one_of(
        activation,
        st.tuples(st.just("linear"), width),
        st.tuples(st.just("residual"), width),
        st.tuples(st.just("concat"), width),
        st.tuples(st.sampled_from(["batch_norm", "chunk", "layer_norm", "rms_norm"])),
    )
    steps = st.tuples(st.lists(image, min_size=2, max_size=6), st.lists(vector, max_size=2))
    return st.builds(
        lambda stem, steps, flatten: Program(stem, tuple(steps[0]), flatten, tuple(steps[1])),
        width,
        steps,
        st.booleans(),
    )


def build(program: Program) -> nn.Module:
    """The network of a program, in float64."""
    layers, width, side = [nn.Conv2d(3, program.stem, 3, padding=1)], program.stem, SIDE
    for step in program.image:
        if step[0] == "pool" and side == 2:
            continue
        layer, width = IMAGE[step[0]](width, *step[1:])
        layers.append(layer)
        side //= 1 + (step[0] == "pool")
    layers.append(nn.Flatten() if program.flatten else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    width *= side * side if program.flatten else 1
    for step in program.vector:
        layer, width = VECTOR[step[0]](width, *step[1:])
        layers.append(layer)
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)).double()


def example() -> tuple[Tensor, ...]:
    """The input of every drawn network."""
    return (torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3), dtype=torch.float64),)


class Residual(nn.Module):
    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x):
        return x + self.body(x)


class Concat(nn.Module):
    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x):
        return torch.cat([x, self.body(x)], dim=1)


class Gate(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, dim=1)
        return value * torch.sigmoid(gate)


class Excite(nn.Module):
    def __init__(self, width, squeeze):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, squeeze, 1), nn.Conv2d(squeeze, width, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean(dim=(2, 3), keepdim=True)))))


class Shuffle(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        return x.transpose(1, 2).reshape(batch, channels, height, width)


Build = Callable[..., tuple[nn.Module, int]]


def _activation(width, name):
    return ACTIVATIONS[name](), width


def _conv(width, out, kernel):
    return nn.Conv2d(width, out, kernel, padding=kernel // 2), out


def _pool(width, kind):
    return (nn.MaxPool2d(2) if kind == "max" else nn.AvgPool2d(2)), width


def _residual(width, inner):
    return Residual(nn.Conv2d(width, inner, 3, padding=1), nn.ReLU(), nn.Conv2d(inner, width, 1)), width


def _concat(width, grow):
    return Concat(nn.Conv2d(width, grow, 3, padding=1), nn.Sigmoid()), width + grow


def _depthwise(width, multiplier):
    return nn.Conv2d(width, width * multiplier, 3, padding=1, groups=width), width * multiplier


def _grouped(width, groups, per_group):
    if width % groups or width == groups:
        first, width = nn.Conv2d(width, 2 * groups, 1), 2 * groups
        return nn.Sequential(
            first, nn.Conv2d(width, groups * per_group, 3, groups=groups, padding=1)
        ), groups * per_group
    return nn.Conv2d(width, groups * per_group, 3, groups=groups, padding=1), groups * per_group


def _excite(width, squeeze):
    return Excite(width, squeeze), width


def _chunk(width):
    if width % 2 or width == 2:
        return nn.Sequential(nn.Conv2d(width, 2 * width, 1), Gate()), width
    return Gate(), width // 2


def _shuffle(width, groups):
    return (nn.Identity() if width % groups or width == groups else Shuffle(groups)), width


def _norm_groups(groups):
    return lambda width: (nn.GroupNorm(groups if groups and width % groups == 0 else width, width), width)


def _linear(width, out):
    return nn.Linear(width, out), out


def _residual_vector(width, inner):
    return Residual(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)), width


def _concat_vector(width, grow):
    return Concat(nn.Linear(width, grow), nn.Tanh()), width + grow


def _chunk_vector(width):
    return nn.Sequential(nn.Linear(width, 6), Gate()), 3


IMAGE: dict[str, Build] = {
    "activation": _activation,
    "conv": _conv,
    "batch_norm": lambda width: (nn.BatchNorm2d(width), width),
    "pool": _pool,
    "residual": _residual,
    "concat": _concat,
    "depthwise": _depthwise,
    "grouped": _grouped,
    "excite": _excite,
    "chunk": _chunk,
    "shuffle": _shuffle,
    "one_group": _norm_groups(1),
    "whole_groups": _norm_groups(2),
    "instance": _norm_groups(0),
}
VECTOR: dict[str, Build] = {
    "activation": _activation,
    "linear": _linear,
    "residual": _residual_vector,
    "concat": _concat_vector,
    "batch_norm": lambda width: (nn.BatchNorm1d(width), width),
    "chunk": _chunk_vector,
    "layer_norm": lambda width: (nn.LayerNorm(width), width),
    "rms_norm": lambda width: (nn.RMSNorm(width, eps=1e-6), width),
}
