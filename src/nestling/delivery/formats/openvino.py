"""OpenVINO's own format: a network as ``.xml``, its weights as ``.bin``."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from nestling.delivery.formats.exported import exported
from nestling.delivery.formats.extras import check_extra
from nestling.delivery.formats.format import FileFormat, Graph, Port
from nestling.errors import TraceError
from nestling.runtime import RECORD, OpenVINOSession, Session, imported_openvino


class OpenVINOFormat(FileFormat):
    """Files for OpenVINO, with all numbers in float32."""

    suffix = ".xml"

    def check_installed(self) -> None:
        """Refuse the format where OpenVINO is missing."""
        check_extra("openvino", "openvino")

    def write(self, graph: Graph, path: Path) -> tuple[Path, ...]:
        """Write the graph to a path that ends in ``.xml``, and its weights beside it."""
        openvino = imported_openvino()
        program = exported(graph)
        try:
            with warnings.catch_warnings(action="ignore"):
                model = openvino.convert_model(program)
        except openvino.frontend.OpConversionFailure as error:
            lines = [line.removeprefix("-- ").strip() for line in str(error).splitlines() if line.startswith("--")]
            advice = "Export to ONNX, or replace the operation."
            raise TraceError(f"OpenVINO can't convert the network: {'; '.join(lines) or error}. {advice}") from None
        for port, given in zip(model.inputs, graph.inputs, strict=True):
            port.tensor.set_names({given.name})
        for port, name in zip(model.outputs, graph.outputs, strict=True):
            port.tensor.set_names({name})
        model.reshape({port.name: _sizes(port) for port in graph.inputs})
        model.set_rt_info(json.dumps(graph.about, allow_nan=False), list(RECORD))
        openvino.save_model(model, path, compress_to_fp16=False)
        return path, path.with_suffix(".bin")

    def opened(self, path: Path) -> Session:
        """The file, opened in OpenVINO with torch's number of threads."""
        return OpenVINOSession(path, threads=torch.get_num_threads())


def _sizes(port: Port) -> list[Any]:
    """The sizes of an input, with -1 for open ones: the converter forgets those that are fixed."""
    return [-1 if axis in port.open_axes else size for axis, size in enumerate(port.example.shape)]
