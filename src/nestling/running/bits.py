"""Nested bits: which weights of a network are quantised, in which groups, and by what."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import BIT_SUFFIX, Bits, Cut, Group, Groups, Holders, QuantiserName
from nestling.running.batches import Call
from nestling.running.dorefa import MOST_BITS, quantise_dorefa
from nestling.running.layers import layer_type, mean_name
from nestling.running.modes import called_with
from nestling.running.quantiser import NUM_PAIRS, fitted_log_tau, quantise, quantise_masked

FIRST_SHARPNESS, LAST_SHARPNESS = 20.0, 2000.0
"""The first and the largest sharpness of annealed steps (Quantization Networks)."""


@dataclass(frozen=True)
class Levels:
    """The levels of a quantised weight: their scale, and the number of pairs of steps."""

    log_tau: Tensor
    num_pairs: int


class WeightQuantiser(nn.Module, ABC):
    """Quantises one weight; the width says to how many levels."""

    size: int
    num_always: int

    def __init__(self, weight: Tensor) -> None:
        super().__init__()

    @abstractmethod
    def quantised(self, weight: Tensor, width: int, sharpness: float | None) -> Tensor:
        """The weight on the levels of a width; with a sharpness, near these levels."""

    @abstractmethod
    def masked(self, weight: Tensor, mask: Tensor) -> Tensor:
        """The weight with each pair of steps scaled by its entry in the mask (size,)."""

    @abstractmethod
    def levels(self, width: int) -> Levels | None:
        """The levels of a width, or None if the weights are not stored as codes."""


class StepQuantiser(WeightQuantiser):
    """FN3's pairs of steps with one learned scale."""

    size, num_always = NUM_PAIRS, 1

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.log_tau = nn.Parameter(fitted_log_tau(weight.detach()))

    def quantised(self, weight: Tensor, width: int, sharpness: float | None) -> Tensor:
        """The weight on the levels of the first ``width`` pairs."""
        if sharpness is None:
            return quantise(weight, self.log_tau, width)
        return quantise(weight, self.log_tau, width, how="sigmoid", sharpness=sharpness)

    def masked(self, weight: Tensor, mask: Tensor) -> Tensor:
        """The weight with each pair of steps scaled."""
        return quantise_masked(weight, self.log_tau, mask)

    def levels(self, width: int) -> Levels:
        """The levels of the first ``width`` pairs."""
        return Levels(self.log_tau, width)


class DoReFaQuantiser(WeightQuantiser):
    """AdaBits' quantiser, whose width is a number of bits."""

    size, num_always = MOST_BITS, 2

    def quantised(self, weight: Tensor, width: int, sharpness: float | None) -> Tensor:
        """The weight on the levels of ``width`` bits."""
        return quantise_dorefa(weight, width)

    def masked(self, weight: Tensor, mask: Tensor) -> Tensor:
        """Not possible: the levels of fewer bits are no subset of the levels of more bits."""
        needed = "quantiser='steps', whose levels nest"
        raise ArgumentError("masks", "a mask over the bits of dorefa", needed, "Draw whole widths instead.")

    def levels(self, width: int) -> None:
        """None: this quantiser is for comparison, and its codes are not packed."""


_QUANTISERS: dict[QuantiserName, type[WeightQuantiser]] = {"steps": StepQuantiser, "dorefa": DoReFaQuantiser}


class Quantised(nn.Module):
    """The quantised weights of a network, by name; each follows the width of its group."""

    def __init__(self, groups: Groups, tensors: Mapping[str, Tensor], bits: Bits) -> None:
        super().__init__()
        self.bits = bits
        self.group_of = {name: group.name for group in groups.free for name in group.quantises}
        make = _QUANTISERS[bits.quantiser]
        self._quantisers = nn.ModuleList(make(tensors[name]) for name in self.group_of)
        self.sharpness = FIRST_SHARPNESS

    def quantisers(self) -> dict[str, WeightQuantiser]:
        """The quantiser of each weight."""
        return dict(zip(self.group_of, self._quantisers, strict=True))  # type: ignore[arg-type]

    def at(self, tensors: Mapping[str, Tensor], cut: Cut) -> dict[str, Tensor]:
        """The quantised weights of a cut; annealed steps are soft in train mode and hard in eval mode."""
        if not self.group_of:
            return {}
        widths = cut.as_dict()
        sharpness = self.sharpness if self.training and self.bits.how == "sigmoid" else None
        return {
            name: quantiser.quantised(tensors[name], widths[self.group_of[name]], sharpness)
            for name, quantiser in self.quantisers().items()
        }

    def masked(self, tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The quantised weights under a mask (K,) for each group."""
        return {
            name: quantiser.masked(tensors[name], masks[self.group_of[name]])
            for name, quantiser in self.quantisers().items()
        }

    def levels(self, cut: Cut) -> dict[str, Levels]:
        """The levels of the weights that are stored packed, at a cut."""
        levels = {name: quantiser.levels(cut[self.group_of[name]]) for name, quantiser in self.quantisers().items()}
        return {name: stored for name, stored in levels.items() if stored is not None}


def bit_groups(
    module: nn.Module,
    call: Call,
    bits: Bits,
    exclude: Collection[str],
    only: Collection[str] | None,
) -> list[Group]:
    """A group of bits for each sequence of consecutive layers, in the order the example runs them."""
    weights = _weights_in_order(module, call)
    inner = weights if bits.ends else weights[1:-1]
    quantised = [name for name in inner if not any(f"{name}.".startswith(f"{excluded}.") for excluded in exclude)]
    if not quantised:
        description = f"{len(weights)} linear and convolution layers, of which none is left to quantise"
        raise ArgumentError("kinds", description, "layers between the first and the last", "Pass bits=Bits(ends=True).")
    num_groups = min(bits.num_groups or len(quantised), len(quantised))
    sequences = [
        quantised[len(quantised) * i // num_groups : len(quantised) * (i + 1) // num_groups] for i in range(num_groups)
    ]
    kind = _QUANTISERS[bits.quantiser]
    groups = [
        Group(
            name=(weight_names[0].rpartition(".")[0] or weight_names[0]) + BIT_SUFFIX,
            kind="bit",
            size=kind.size,
            slices=(),
            num_blocks=kind.size,
            num_always=kind.num_always,
            quantises=tuple(weight_names),
        )
        for weight_names in sequences
    ]
    names = [group.name for group in groups]
    for name in only or ():
        if name.endswith(BIT_SUFFIX) and name not in names:
            raise ArgumentError("only", repr(name), f"names of groups ({', '.join(names)})", "Check its spelling.")
    return [group for group in groups if only is None or group.name in only]


def with_bit_groups(groups: Groups, added: Sequence[Group], tensors: Collection[str]) -> Groups:
    """All groups together, in the order of their first tensors."""
    place = {name: number for number, name in enumerate(tensors)}

    def first(group: Group) -> int:
        return min((place[name] for name in group.tensors if name in place), default=len(place))

    merged = list(groups)
    for group in added:
        after = [number for number, other in enumerate(merged) if first(other) <= first(group)]
        merged.insert(after[-1] + 1 if after else 0, group)
    return Groups(merged)


def of_posteriors(groups: Sequence[Group], layers: Collection[str]) -> list[Group]:
    """The same groups after layers became variational: their means are quantised."""

    def renamed(name: str) -> str:
        path, _, key = name.rpartition(".")
        return mean_name(path) if path in layers and key == "weight" else name

    return [replace(group, quantises=tuple(map(renamed, group.quantises))) for group in groups]


def _weights_in_order(module: nn.Module, call: Call) -> list[str]:
    """The weights to quantise, each used by one layer only, in the order the example runs them."""
    holders = Holders(module)
    uses = [name for _, names in holders.members for name in names.values()]
    layers = {names["weight"]: layer for layer, names in holders.members if "weight" in names}
    quantised = {
        name: layer for name, layer in layers.items() if layer_type(layer).is_quantised and uses.count(name) == 1
    }
    return list(called_with(quantised, module, call))
