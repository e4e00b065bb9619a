"""The ranks that torchrun gives to the processes it starts, read from the environment."""

import os


def local_rank() -> int:
    """The rank of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def launched_rank() -> int:
    """The rank of this process among all that torchrun started, whether they are connected or not."""
    return int(os.environ.get("RANK", "0"))
