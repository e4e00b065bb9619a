"""What is known of a tensor on the graph: its shape, and which label each element of a labelled axis carries."""

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
    """A tensor of the graph. An element is kept if the labels of all its factors are; other axes have a fixed size.

    ``from_input`` says whether the tensor depends on the user's input, and not on parameters alone.
    """

    shape: tuple[int, ...]
    factors: tuple[Factor, ...] = ()
    from_input: bool = True

    def factor(self, axis: int) -> Factor | None:
        """The factor that labels ``axis``, if any."""
        return next((factor for factor in self.factors if axis in factor.axes), None)

    def without(self, factor: Factor) -> "Value":
        """The same tensor without one of its factors."""
        return replace(self, factors=tuple(other for other in self.factors if other is not factor))

    def moved(self, places: dict[int, int], shape: tuple[int, ...]) -> "Value":
        """The tensor, with all its factors, after axis ``old`` has become axis ``places[old]``."""
        return replace(self, shape=shape, factors=tuple(_moved(factor, places) for factor in self.factors))


def _moved(factor: Factor, places: dict[int, int]) -> Factor:
    target = [places[axis] for axis in factor.axes]
    order = np.argsort(target)
    return Factor(tuple(sorted(target)), factor.ids.transpose(order))


def simplified(axes: tuple[int, ...], ids: Ids) -> Factor | None:
    """A factor over ``axes`` without those along which the labels don't change; None if no axis is left."""
    keep = [position for position, size in enumerate(ids.shape) if size > 1 and (ids != ids.take([0], position)).any()]
    if not keep:
        return None
    index = tuple(slice(None) if position in keep else 0 for position in range(ids.ndim))
    return Factor(tuple(axes[position] for position in keep), ids[index])
