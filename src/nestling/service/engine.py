"""An engine: a network at several widths, each of which answers a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from nestling.runtime import BATCH
from nestling.service.finishing import finished
from nestling.service.width import Arrays, Port, Width

ANSWERED = "answered"
"""The output that says whether an example got an answer, which it always does except at the end of a cascade."""
WIDTH = "width"
"""The output that names the width that answered each example."""
OPEN = 16
"""Stands for an open size of which nothing is known."""


class Engine(ABC):
    """A network at several widths.

    Attributes:
        about: The record of its inputs, data and classes, as an exported file has it.
        widths: The widths, the narrowest first.
        platform: What computes, in words.
        mixes: Whether examples of several requests may share a batch: not where an example's noise depends on its place
            in the batch.

    Examples:
        >>> from nestling.service import FileEngine
        >>> engine = FileEngine("digits.onnx")
        >>> engine.answer(0, engine.zeros(3))["entropy"].shape
        (3,)
        >>> engine.width_named("0.5")
        0
    """

    about: Mapping[str, Any]
    widths: tuple[Width, ...]
    platform: str
    mixes: bool = True

    @abstractmethod
    def run(self, width: int, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name, each with the batch first, at the width with this number."""

    def answer(self, width: int, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs with what a service adds to them: calibrated probabilities, uncertainty, conformal sets."""
        return finished(self.run(width, inputs), self.widths[width].calibrated, self.about)

    @cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """The answer for one example of zeros, for the names, dtypes and shapes of outputs."""
        return self.answer(len(self.widths) - 1, self.zeros(1))

    @property
    def tells_classes(self) -> bool:
        """Whether an answer is one class per example, of which a width can be sure or not."""
        return "probs" in self.outputs and self.outputs["probs"].ndim == 2

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of all outputs of the service."""
        return (*self.outputs, *((ANSWERED,) if self.tells_classes else ()), WIDTH)

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """The inputs that a caller gives."""
        return tuple(_port(entry) for entry in self.about["inputs"] if "fill" not in entry)

    def zeros(self, num_examples: int) -> dict[str, np.ndarray]:
        """Inputs of zeros; a size that is open is that of the data, or ``OPEN``."""
        usual = tuple((self.about.get("data") or {}).get("input_shape") or ())
        arrays = {}
        for port in self.ports:
            sizes = usual if len(usual) == len(port.shape) else (OPEN,) * len(port.shape)
            shape = (own if own is not None else size for own, size in zip(port.shape, sizes, strict=True))
            arrays[port.name] = np.zeros((num_examples, *shape), port.dtype)
        return arrays

    @property
    def classes(self) -> list[str]:
        """The names of the classes, empty where they have none."""
        return [str(name) for name in self.about.get("classes") or ()]

    def width_named(self, name: str) -> int | None:
        """The number of a width by its name, or by a number that it is written as; None if there is none."""
        for number, width in enumerate(self.widths):
            if name == width.name or name in width.name.split(", "):
                return number
        return None


def _port(entry: Mapping[str, Any]) -> Port:
    sizes = entry["shape"][1:] if entry["shape"][:1] == [BATCH] else entry["shape"]
    return Port(entry["name"], entry["dtype"], tuple(None if isinstance(size, str) else size for size in sizes))
