"""The arrays that an open file is given, in the order of its inputs."""

from collections.abc import Mapping, Sequence

import numpy as np

from nestling.errors import ArgumentError


def in_order(inputs: Sequence[str], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays as they lie in memory for a runtime, one per input; missing and unknown names are errors.

    Runtimes differ here: OpenVINO silently takes the array of the call before for one that is missing.
    """
    if arrays.keys() != set(inputs):
        given, needed = ", ".join(arrays) or "no array", f"one array for each of {', '.join(inputs)}"
        raise ArgumentError("arrays", given, needed, "Check the names against `inputs` of the open file.")
    return [np.ascontiguousarray(arrays[name]) for name in inputs]
