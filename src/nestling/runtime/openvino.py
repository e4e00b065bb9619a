"""A file opened with OpenVINO and numpy alone: OpenVINO's own format, or ONNX."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError
from nestling.runtime.arrays import in_order
from nestling.runtime.session import Session

RECORD = ("nestling", "about")
"""The path of a network's record in the runtime information of OpenVINO's format."""
_REPORTS_USE = "openvino_telemetry"


class OpenVINOSession(Session):
    """A network compiled by OpenVINO for the CPU; several threads may run it at once.

    Args:
        path: the ``.xml`` file, with its ``.bin`` file beside it, or an ``.onnx`` file.
        shapes: inputs whose shape is fixed when the file is compiled, by name; an open size stays open as -1.

    Raises:
        RunError: if OpenVINO can't read the file, or lacks one of its operations.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        core = imported_openvino().Core()
        try:
            model = core.read_model(path)
            if shapes:
                model.reshape({name: list(sizes) for name, sizes in shapes.items()})
            # By default OpenVINO computes in bfloat16 where the processor can, with errors of about one percent.
            self._compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            self.about = _record_of(model)
            self.inputs = tuple(port.any_name for port in model.inputs)
            self.outputs = tuple(port.any_name for port in model.outputs)
        except (RuntimeError, ValueError) as error:
            raise RunError(path, f"can't be opened by OpenVINO ({_reason(error)})", "Export it again.") from None

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
        given = in_order(self.inputs, arrays)
        try:
            results = self._compiled.create_infer_request().infer(given)
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(self.inputs, given, strict=True))
            needed = f"of the shapes that the file takes ({_reason(error)})"
            raise ArgumentError("arrays", shapes, needed, "Check their shapes and dtypes.") from None
        return {name: np.array(results[number]) for number, name in enumerate(self.outputs)}


def imported_openvino() -> ModuleType:
    """The package ``openvino``, imported without its part that reports each use to OpenVINO's makers."""
    if "openvino" in sys.modules or _REPORTS_USE in sys.modules:
        return import_module("openvino")
    sys.modules[_REPORTS_USE] = None  # type: ignore[assignment]  # an import of it fails, which openvino expects
    try:
        return import_module("openvino")
    finally:
        del sys.modules[_REPORTS_USE]


def _record_of(model: Any) -> dict[str, Any]:  # noqa: ANN401 (the runtime is not needed to read this file)
    """The record in a model of OpenVINO's format, or in the metadata of an ONNX file; empty in files of others."""
    for place in (list(RECORD), ["framework", RECORD[0]]):
        if model.has_rt_info(place):
            record = json.loads(model.get_rt_info(place).astype(str))
            if isinstance(record, dict):
                return record
            raise ValueError("its record is not a JSON object")
    return {}


def _reason(error: Exception) -> str:
    """What an error of OpenVINO says, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Exception from", "Check '"))) or lines[0]
