"""ExecuTorch's format: one file for phones and other devices, computed by XNNPACK."""

import json
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from nestling.delivery.formats.exported import exported
from nestling.delivery.formats.extras import check_extra
from nestling.delivery.formats.format import FileFormat, Graph, Port
from nestling.errors import TraceError
from nestling.runtime import RECORD_METHOD, ExecuTorchSession, Session

LARGEST = 64
"""The most that an open size can be: a program plans its memory for it."""
_TRACED = 16
"""The size of open axes when a program is lowered. With 2, the file would refuse 16 and more whatever its range is."""


class ExecuTorchFormat(FileFormat):
    """Files for ExecuTorch, with what XNNPACK computes handed to it, and the rest left to ExecuTorch's own code."""

    suffix = ".pte"

    def check_installed(self) -> None:
        """Refuse the format where ExecuTorch is missing."""
        check_extra("executorch", "executorch")

    def write(self, graph: Graph, path: Path) -> tuple[Path, ...]:
        """Write the graph, with its record in a method of its own, and run the file at the limits of its sizes."""
        names = {"inputs": [port.name for port in graph.inputs], "outputs": list(graph.outputs)}
        record = json.dumps({"about": graph.about} | names, allow_nan=False)
        path.write_bytes(_lowered(exported(graph, least=_TRACED, most=LARGEST), record))
        _check_limits(graph, path)
        return (path,)

    def opened(self, path: Path) -> Session:
        """The file, opened in ExecuTorch."""
        return ExecuTorchSession(path)


def _lowered(program: ExportedProgram, record: str) -> bytes:
    """The content of the file of a program."""
    try:
        with warnings.catch_warnings(action="ignore"):
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            methods = {RECORD_METHOD: record}
            lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], constant_methods=methods)
            return bytes(lowered.to_executorch().buffer)
    except Exception as error:  # torch and ExecuTorch raise errors of many kinds
        operations = sorted(set(re.findall(r"\baten[.:]+\w+(?:\.\w+)?", str(error))))
        wrong = ", ".join(operations) or " ".join(str(error).split())[:200]
        advice = "Export to ONNX, or replace the operation."
        raise TraceError(f"ExecuTorch can't convert the network: {wrong}. {advice}") from None


def _check_limits(graph: Graph, path: Path) -> None:
    """Run a file at the smallest and the largest open sizes, since its range promises more than it may take."""
    session = ExecuTorchSession(path)
    for size in (1, LARGEST):
        session.run({port.name: _resized(port, size).numpy() for port in graph.inputs})


def _resized(port: Port, size: int) -> Tensor:
    """The example, with its open axes cut or repeated to a size."""
    example = port.example
    for axis in port.open_axes:
        example = example.index_select(axis, torch.arange(size) % example.shape[axis])
    return example
