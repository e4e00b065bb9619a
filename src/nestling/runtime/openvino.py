"""A file opened with OpenVINO and numpy alone: OpenVINO's own format, or ONNX."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError
from nestling.runtime.arrays import in_order
from nestling.runtime.record import KEY, record_in
from nestling.runtime.session import Choose, Session

RECORD = (KEY, "about")
"""The path of a network's record in the runtime information of OpenVINO's format."""
_REPORTS_USE = "openvino_telemetry"


class OpenVINOSession(Session):
    """A network compiled by OpenVINO for the CPU; several threads may run it at once.

    Args:
        path: the ``.xml`` file, with its ``.bin`` file beside it, or an ``.onnx`` file.
        choose: from the record of the file, open sizes that are fixed before it is compiled, by name.
        threads: CPU threads; None leaves the choice to OpenVINO.

    Raises:
        RunError: if OpenVINO can't read the file, or lacks one of its operations.
    """

    def __init__(self, path: Path, *, choose: Choose | None = None, threads: int | None = None) -> None:
        core, model = imported_openvino().Core(), None
        # By default OpenVINO computes in bfloat16 where the processor can, with errors of about one percent.
        # It also ties its threads to cores, and then waits where another process keeps such a core busy.
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        try:
            model = core.read_model(path)
            self.about = _record_of(model)
            if choose is not None:
                model.reshape(_shapes(self.about, choose(self.about)))
            self._compiled = core.compile_model(model, "CPU", options)
            self._own = local()  # a thread's request, which takes a quarter of the time of a small call to make
            self.inputs = tuple(port.any_name for port in model.inputs)
            self.outputs = tuple(port.any_name for port in model.outputs)
        except (RuntimeError, ValueError) as error:
            reason, advice = _refusal(model, getattr(self, "about", {}), choose) or (_reason(error), "Export it again.")
            raise RunError(path, f"can't be opened by OpenVINO ({reason})", advice) from None

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input."""
        given = in_order(self.inputs, arrays)
        # Checked here, since OpenVINO with one thread gives empty outputs for shapes that don't fit, without a word.
        if not all(_fits(array, port.partial_shape) for array, port in zip(given, self._compiled.inputs, strict=True)):
            shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(self.inputs, given, strict=True))
            needed = ", ".join(f"{port.any_name} {port.partial_shape}" for port in self._compiled.inputs)
            raise ArgumentError("arrays", shapes, needed, "Sizes with a question mark are open.")
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        results = self._own.request.infer(given)
        return {name: np.array(results[number]) for number, name in enumerate(self.outputs)}


def _shapes(about: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """The shape of each input by its name, with some of the open sizes fixed, and -1 for the others."""
    return {
        port["name"]: [sizes.get(size, -1) if isinstance(size, str) else size for size in port["shape"]]
        for port in about["inputs"]
    }


def _fits(array: np.ndarray, shape: Any) -> bool:  # noqa: ANN401 (OpenVINO's PartialShape)
    """Whether an array has the shape of an input, some sizes of which may be open."""
    sizes = [None if size.is_dynamic else size.get_length() for size in shape]
    return array.ndim == len(sizes) and all(
        size in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    )


def imported_openvino() -> Any:  # noqa: ANN401 (a package that may be missing)
    """The package ``openvino``, imported without its part that reports each use to OpenVINO's makers."""
    alone = "openvino" in sys.modules or _REPORTS_USE in sys.modules
    if not alone:
        sys.modules[_REPORTS_USE] = None  # type: ignore[assignment]  # so that its import fails, which openvino expects
    try:
        return import_module("openvino")
    except ImportError:
        advice = "Install it with: pip install 'nestling[openvino]'"
        raise ArgumentError("openvino", "nothing", "installed to open such a file", advice) from None
    finally:
        if not alone:
            del sys.modules[_REPORTS_USE]


def _record_of(model: Any) -> dict[str, Any]:  # noqa: ANN401 (the runtime is not needed to read this file)
    """The record in a model of OpenVINO's format, or in the metadata of an ONNX file; empty in files of others."""
    places = (list(RECORD), ["framework", KEY])
    texts = (model.get_rt_info(place).astype(str) for place in places if model.has_rt_info(place))
    return record_in(next(texts, None))


def _refusal(model: Any, about: Mapping[str, Any], choose: Choose | None) -> tuple[str, str] | None:  # noqa: ANN401
    """Why OpenVINO can't compile a file of several widths, and what to do; None for any other file."""
    if not about.get("widths"):
        return None
    if choose is None:
        return "it holds several widths, and OpenVINO compiles one", "Pass choose=, or open it with nl.runtime.open."
    if any(operation.get_type_name() == "If" for operation in model.get_ops()):
        reason = "it has a grouped convolution (GroupConvolution) with a branch per number of groups, and OpenVINO"
        advice = "Export the cut by itself with to='openvino', or open this file with nl.runtime.open."
        return f"{reason} checks the shapes of all branches", advice
    return None


def _reason(error: Exception) -> str:
    """What an error of OpenVINO says, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Exception from", "Check '"))) or lines[0]
