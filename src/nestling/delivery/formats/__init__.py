"""The formats of export, one file each."""

from nestling.delivery.formats.format import FileFormat, Graph, Port
from nestling.delivery.formats.onnx import OnnxFormat

__all__ = ["FORMATS", "FileFormat", "Graph", "Port"]

FORMATS: dict[str, type[FileFormat]] = {"onnx": OnnxFormat}
"""The formats that ``export`` can write, by name."""
