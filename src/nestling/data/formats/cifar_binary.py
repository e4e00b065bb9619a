"""The binary version of CIFAR: records of one label byte (two for CIFAR-100, coarse and fine) and 3072 pixels."""

import numpy as np
from numpy.typing import NDArray

from nestling.data.faults import DamagedError

IMAGE_SHAPE = (3, 32, 32)
NUM_PIXELS = 3 * 32 * 32


Bytes = NDArray[np.uint8]


def read_cifar_binary(content: bytes, where: str, num_label_bytes: int) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,); the label is the last of the label bytes."""
    record = num_label_bytes + NUM_PIXELS
    if not content or len(content) % record:
        raise DamagedError(
            f"{where} is damaged: {len(content)} bytes are not whole records of {record}. Fetch it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    images = np.ascontiguousarray(records[:, num_label_bytes:]).reshape(-1, *IMAGE_SHAPE)
    return images, records[:, num_label_bytes - 1].copy()
