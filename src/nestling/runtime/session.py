"""A file of a network, opened in the runtime that it is for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Choose = Callable[[Mapping[str, Any]], Mapping[str, int]]
"""From the record of a file, the sizes that are fixed while it is open, by name."""


class Session(ABC):
    """A file of a network, opened in the runtime that it is for. Each runtime has a child of this class.

    Attributes:
        about: The record that was written into the file.
        inputs: The names of its input arrays, in order.
        outputs: The names of its output arrays, in order.

    Examples:
        >>> session = nl.runtime.open("digits.onnx").session
        >>> session.outputs[0]
        'probs'
    """

    about: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input.

        Args:
            arrays: One array for each of ``inputs``, with the shapes and dtypes of the record.

        Returns:
            One array for each of ``outputs``, with the batch first.
        """
