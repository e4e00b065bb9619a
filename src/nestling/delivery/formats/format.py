"""What a format of export is given to write, and what it can do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from nestling.runtime import Session


@dataclass(frozen=True)
class Port:
    """An input of a file: its name, an example, and the axes whose size is open, each with the name of its size."""

    name: str
    example: Tensor
    open_axes: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A module with what a file of it has to say.

    The module takes one tensor per input, in order, and gives one tensor, or a tuple with one per name in ``outputs``.
    ``about`` is the record that travels in the file, as JSON has it.
    """

    module: nn.Module
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    about: Mapping[str, Any]


class FileFormat(ABC):
    """A format of export: it writes a graph, and opens what it wrote in the runtime that the file is for."""

    suffix: ClassVar[str]
    """How its files are called, ``.onnx``."""

    @abstractmethod
    def check_installed(self) -> None:
        """Refuse the format, with the extra to install, where its runtime is missing."""

    @abstractmethod
    def write(self, graph: Graph, path: Path) -> tuple[Path, ...]:
        """Write the graph to a path in a temporary folder, and give all files that were written, the main one first."""

    @abstractmethod
    def opened(self, path: Path) -> Session:
        """The file, opened in its runtime."""
