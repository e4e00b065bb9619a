"""The noise that a file with uncertainty takes as an input, made from a seed by numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def noise_for(record: Mapping[str, Any], seed: int, batch: int, samples: int | None = None) -> np.ndarray:
    """Standard normal noise for a file's ``noise`` input.

    The noise of an example depends on the seed, the number of samples and the example's place in the batch alone, not
    on the size of the batch.

    Args:
        record: What the file's record says under "noise".
        seed: A whole number of at least 0; the same seed gives the same noise.
        batch: The number of examples in the batch.
        samples: The number of draws; None takes what the record recommends.

    Returns:
        An array of float32: (samples, values), the same for all examples, or (samples, batch, values).

    Examples:
        >>> record = {"axes": ["samples", "batch"], "values": 1514, "samples": 6}
        >>> nl.runtime.noise_for(record, seed=0, batch=1).shape
        (6, 1, 1514)
    """
    sizes = {"samples": record["samples"] if samples is None else samples, "batch": batch}
    axes = list(record["axes"])
    shape = (*(sizes[axis] for axis in axes), record["values"])
    return normal_noise(shape, np.dtype(np.float32), axes.index("batch") if "batch" in axes else 0, seed)


def normal_noise(shape: Sequence[int], dtype: np.dtype, axis: int, seed: int) -> np.ndarray:
    """Standard normal noise that is drawn along ``axis`` first, so that a longer axis begins with the same noise."""
    first = [shape[axis], *(size for place, size in enumerate(shape) if place != axis)]
    drawn = np.random.default_rng(seed).standard_normal(first, dtype)
    return np.ascontiguousarray(np.moveaxis(drawn, 0, axis))
