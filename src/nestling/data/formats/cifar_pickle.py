"""The Python version of CIFAR, read without unpickling: no function that the file names is imported or called."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.faults import DamagedError
from nestling.data.formats.cifar_binary import IMAGE_SHAPE, NUM_PIXELS
from nestling.data.formats.plain_pickle import read_plain_pickle


def read_cifar_pickle(content: bytes, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels (N,), the fine labels if there are two kinds."""
    batch = read_plain_pickle(content, where)
    pixels, labels = _entries(batch)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != NUM_PIXELS:
        raise DamagedError(f"{where} has no array 'data' of N x {NUM_PIXELS} bytes, as a batch of CIFAR has.")
    are_numbers = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)
    if not are_numbers or len(labels) != len(pixels):
        raise DamagedError(f"{where} has no list of {len(pixels)} whole numbers 'labels' or 'fine_labels'.")
    return pixels.reshape(-1, *IMAGE_SHAPE), np.array(labels, np.int64)


def _entries(batch: object) -> tuple[Any, Any]:
    if not isinstance(batch, dict):
        return None, None
    values_by_name = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    return values_by_name.get("data"), values_by_name.get("labels", values_by_name.get("fine_labels"))
