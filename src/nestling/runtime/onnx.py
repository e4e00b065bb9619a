"""An ONNX file, opened in ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError
from nestling.runtime.arrays import in_order
from nestling.runtime.record import KEY, record_in
from nestling.runtime.session import Choose, Session

_SILENT = 4
"""What ONNX Runtime prints by itself: nothing, since its errors are raised."""


class OnnxSession(Session):
    """An ONNX file in ONNX Runtime; several threads may run it at once.

    Args:
        path: the file.
        choose: from the record of the file, open sizes that are fixed while it is open, by name. What follows from
            them is computed once.
        threads: CPU threads; None leaves the choice to ONNX Runtime.

    Raises:
        RunError: if ONNX Runtime can't read the file, or lacks one of its operations.
    """

    def __init__(self, path: Path, *, choose: Choose | None = None, threads: int | None = None) -> None:
        runtime = _imported_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = _SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        if choose is not None:
            for name, size in choose(_record(_opened(runtime, path, _as_it_is(runtime)))).items():
                options.add_free_dimension_override_by_name(name, size)
        self._session = _opened(runtime, path, options)
        self.about = _record(self._session)
        self.inputs = tuple(port.name for port in self._session.get_inputs())
        self.outputs = tuple(port.name for port in self._session.get_outputs())

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
        given = dict(zip(self.inputs, in_order(self.inputs, arrays), strict=True))
        try:
            return dict(zip(self.outputs, self._session.run(None, given), strict=True))
        except Exception as error:  # as above
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in given.items())
            needed = f"what the file takes ({' '.join(str(error).split())[:300]})"
            raise ArgumentError("arrays", shapes, needed, "Check their shapes and dtypes.") from None


def _opened(runtime: Any, path: Path, options: Any) -> Any:  # noqa: ANN401 (the runtime may be missing)
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no parent of their own
        reason = " ".join(str(error).split())[:300]
        raise RunError(path, f"can't be opened by ONNX Runtime ({reason})", "Export it again.") from None


def _as_it_is(runtime: Any) -> Any:  # noqa: ANN401
    """Options that prepare nothing, to read the record of a file."""
    options = runtime.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _record(session: Any) -> dict[str, Any]:  # noqa: ANN401
    return record_in(session.get_modelmeta().custom_metadata_map.get(KEY))


def _imported_runtime() -> Any:  # noqa: ANN401 (a package that may be missing)
    try:
        import onnxruntime
    except ImportError:
        advice = "Install it with: pip install 'nestling[onnx]'"
        raise ArgumentError("onnxruntime", "nothing", "installed to open an .onnx file", advice) from None
    return onnxruntime
