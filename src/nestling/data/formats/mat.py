"""Arrays by name from a MATLAB file."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nestling.data.faults import DamagedError


def read_mat(path: Path, keys: tuple[str, ...]) -> list[NDArray[Any]]:
    """The arrays called ``keys``."""
    from scipy.io import loadmat  # imported here, because it is slow and few data sets need it

    try:
        variables = loadmat(path, variable_names=list(keys))
    except Exception as fault:  # scipy raises errors of every kind if a file is damaged
        raise DamagedError(f"{path} is damaged: {fault!r:.120}. Delete it and fetch it again.") from fault
    for key in keys:
        if key not in variables:
            raise DamagedError(f"{path} has no array {key}, as the official file has. Delete it and fetch it again.")
    return [variables[key] for key in keys]
