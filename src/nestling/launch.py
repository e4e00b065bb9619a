"""What torchrun says, in the environment, of the processes that it started."""

import os


def local_rank() -> int:
    """Which of the processes on this machine this is."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def launched_rank() -> int:
    """Which of the processes that torchrun started this is, connected or not."""
    return int(os.environ.get("RANK", "0"))
