"""The formats of export, one file each."""

from nestling.delivery.formats.executorch import ExecuTorchFormat
from nestling.delivery.formats.format import FileFormat, Graph, Port
from nestling.delivery.formats.onnx import OnnxFormat
from nestling.delivery.formats.openvino import OpenVINOFormat

__all__ = ["FORMATS", "FileFormat", "Graph", "Port"]

FORMATS: dict[str, type[FileFormat]] = {"onnx": OnnxFormat, "openvino": OpenVINOFormat, "executorch": ExecuTorchFormat}
"""The formats that ``export`` can write, by name."""
