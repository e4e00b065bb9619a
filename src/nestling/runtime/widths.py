"""Chooses a width of an ONNX file that holds every width: when the file is opened, or at each call; without torch."""

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError

RECORD = "nestling"
"""The key of a file's metadata under which its record is, as JSON."""


def record_of(path: str | PathLike[str]) -> dict[str, Any]:
    """The record in an ONNX file, read without preparing the file to run.

    Raises:
        RunError: The file can't be read, or nestling did not write it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        record: dict[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map[RECORD])
    except KeyError:
        raise RunError(path, "has no record of nestling", "Export the network with nestling.") from None
    except Exception as fault:  # onnxruntime raises errors of many kinds
        raise RunError(path, f"can't be read ({type(fault).__name__})", "Export the network again.") from None
    return record


def sizes_at(record: Mapping[str, Any], cut: float | str) -> dict[str, int]:
    """The size of every dimension that chooses a cut of a file, by the name of the dimension.

    Args:
        record: The record of the file: ``record_of(path)``, or the ``about`` of an open session.
        cut: A row of the file's table: its name, a fraction that it is named by, or its number, counted from 0.

    Raises:
        ArgumentError: The file does not hold every width, or its table has no such row.
    """
    widths = record.get("widths")
    if widths is None:
        raise ArgumentError("cut", repr(cut), "left out for a file of one width", "Export it with all widths.")
    table = widths["table"]
    if isinstance(cut, int) and not isinstance(cut, bool) and 0 <= cut < len(table):
        return dict(table[cut]["sizes"])
    for row in table:
        if cut == row["name"] or (isinstance(cut, float) and cut in _fractions(row["name"])):
            return dict(row["sizes"])
    names = ", ".join(row["name"] for row in table)
    raise ArgumentError(
        "cut", repr(cut), f"a cut of the file's table ({names})", "Pass its name, its fraction or its number."
    )


def options_at(sizes: Mapping[str, int], options: Any = None) -> Any:  # noqa: ANN401
    """Options for an onnxruntime session that fix the width when the file is opened: it is as fast as the smaller file.

    Args:
        sizes: The sizes that ``sizes_at`` gives.
        options: ``onnxruntime.SessionOptions`` to add to; new ones if None.

    Returns:
        The ``SessionOptions``. A call of the session still takes ``inputs_at(sizes)``.
    """
    import onnxruntime

    chosen = onnxruntime.SessionOptions() if options is None else options
    for name, size in sizes.items():
        chosen.add_free_dimension_override_by_name(name, size)
    return chosen


def inputs_at(sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The inputs of a call that choose a width: of each only the size counts, so they are empty bytes.

    A session that was opened with ``options_at`` takes them too, at the same sizes.
    """
    return {name: np.zeros(size, np.uint8) for name, size in sizes.items()}


def reshape_to(model: Any, sizes: Mapping[str, int]) -> None:  # noqa: ANN401
    """Fix the width of an OpenVINO model before it is compiled, which OpenVINO needs to run the file.

    Args:
        model: The ``openvino.Model`` that ``openvino.Core().read_model(path)`` gives; it is changed.
        sizes: The sizes that ``sizes_at`` gives.
    """
    model.reshape({name: [size] for name, size in sizes.items()})


def _fractions(name: str) -> list[float]:
    """The fractions that a row is named by, as ``0.1, 0.25``."""
    try:
        return [float(part) for part in name.split(",")]
    except ValueError:
        return []
