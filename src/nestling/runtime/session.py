"""A file of a network, opened in the runtime that it is for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Choose = Callable[[Mapping[str, Any]], Mapping[str, int]]
"""From the record of a file, the sizes that are fixed while it is open, by name."""


class Session(ABC):
    """An open file: ``about`` is its record, ``inputs`` and ``outputs`` are the names of its arrays, in order."""

    about: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
