"""A file opened with ExecuTorch, whose Python package, unlike its runtime on devices, comes with torch."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError
from nestling.runtime.arrays import in_order
from nestling.runtime.session import Choose, Session

RECORD_METHOD = "nestling"
"""The method of a program that returns its record: ``about``, and the names of ``inputs`` and ``outputs``, as JSON."""
FORWARD = "forward"


class ExecuTorchSession(Session):
    """A ``.pte`` file; threads that run it at the same time wait for each other, since its memory is planned for one.

    Args:
        path: the file.
        choose: not possible here; None.
        threads: of no effect: ExecuTorch has one pool of threads for all files of a process.

    Raises:
        ArgumentError: if sizes are to be fixed.
        RunError: if ExecuTorch can't read the file, or the file has no record.
    """

    def __init__(self, path: Path, *, choose: Choose | None = None, threads: int | None = None) -> None:
        runtime = _imported_runtime()
        if choose is not None:
            advice = "Export the cut that you want, or open an .onnx file."
            raise ArgumentError("cut", "one for a .pte file", "chosen when the file is exported", advice)
        self._torch, self._lock = import_module("torch"), Lock()
        try:
            # A method reads the bytes that its program holds, so the program must live as long.
            self._program = runtime.Runtime.get().load_program(path.read_bytes())
            record = json.loads(self._program.load_method(RECORD_METHOD).execute([])[0])
            self._method = self._program.load_method(FORWARD)
            self.about = record["about"]
            self.inputs, self.outputs = tuple(record["inputs"]), tuple(record["outputs"])
        except (OSError, RuntimeError, KeyError, TypeError, IndexError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RunError(path, f"can't be opened by ExecuTorch ({reason})", "Export it again.") from None

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
        given = in_order(self.inputs, arrays)
        try:
            with self._lock:
                results = self._method.execute([self._torch.from_numpy(array) for array in given])
        except RuntimeError:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(self.inputs, given, strict=True))
            limits = (self._method.metadata.input_tensor_meta(number).sizes() for number in range(len(self.inputs)))
            largest = ", ".join(f"{name} {sizes}" for name, sizes in zip(self.inputs, limits, strict=True))
            advice = "Split the batch, or check shapes and dtypes."
            raise ArgumentError("arrays", shapes, f"of the dtypes of the file, and at most {largest}", advice) from None
        return {name: result.numpy() for name, result in zip(self.outputs, results, strict=True)}


def _imported_runtime() -> Any:  # noqa: ANN401 (a package that may be missing)
    try:
        return import_module("executorch.runtime")
    except ImportError:
        advice = "Install it with: pip install 'nestling[executorch]'"
        raise ArgumentError("executorch", "nothing", "installed to open a .pte file", advice) from None
