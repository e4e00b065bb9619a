"""What is known of a tensor on the graph: its shape, and for each labelled axis which label each element carries."""

from dataclasses import dataclass, replace

import numpy as np

from nestling.reading.labels import Ids


@dataclass(frozen=True)
class Factor:
    """Labels over one axis, or over several jointly (an axis that a reshape has split); ``axes`` ascend."""

    axes: tuple[int, ...]
    ids: Ids


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. An element is there as long as all its factors' labels are; other axes have a fixed size.

    ``from_input`` says whether it depends on the user's input, rather than on parameters alone.
    """

    shape: tuple[int, ...]
    factors: tuple[Factor, ...] = ()
    from_input: bool = True

    def factor(self, axis: int) -> Factor | None:
        """The factor that labels ``axis``, if any."""
        return next((f for f in self.factors if axis in f.axes), None)

    def without(self, factor: Factor) -> "Value":
        """The same tensor with one factor forgotten."""
        return replace(self, factors=tuple(f for f in self.factors if f is not factor))

    def moved(self, places: dict[int, int], shape: tuple[int, ...]) -> "Value":
        """Carry every factor along when axis ``old`` becomes axis ``places[old]``."""
        return replace(self, shape=shape, factors=tuple(_moved(f, places) for f in self.factors))


def _moved(factor: Factor, places: dict[int, int]) -> Factor:
    target = [places[axis] for axis in factor.axes]
    order = np.argsort(target)
    return Factor(tuple(sorted(target)), factor.ids.transpose(order))


def simplified(axes: tuple[int, ...], ids: Ids) -> Factor | None:
    """A factor over the given axes, leaving out those along which the labels don't change; None if none is left."""
    keep = [position for position, size in enumerate(ids.shape) if size > 1 and (ids != ids.take([0], position)).any()]
    if not keep:
        return None
    index = tuple(slice(None) if position in keep else 0 for position in range(ids.ndim))
    return Factor(tuple(axes[position] for position in keep), ids[index])
