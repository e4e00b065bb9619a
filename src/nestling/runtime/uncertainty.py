"""The noise that a file with uncertainty takes as an input, made from a seed by numpy."""

from collections.abc import Mapping
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

    Example:
        >>> noise_for({"axes": ["samples", "batch"], "values": 1514, "samples": 6}, seed=0, batch=1).shape
        (6, 1, 1514)
    """
    sizes = {"samples": record["samples"] if samples is None else samples, "batch": batch}
    axes = list(record["axes"])
    drawn_first = sorted(axes)  # "batch" before "samples"
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((*(sizes[axis] for axis in drawn_first), record["values"]), dtype=np.float32)
    return noise if axes == drawn_first else np.ascontiguousarray(noise.swapaxes(0, 1))
