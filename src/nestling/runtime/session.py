"""A file of a network, opened in the runtime that it is for."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np


class Session(ABC):
    """An open file: ``about`` is its record, ``inputs`` and ``outputs`` are the names of its arrays, in order."""

    about: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
