"""The formats of export, one file each."""

from nestling.delivery.formats.format import FileFormat, Graph, Port

__all__ = ["FORMATS", "FileFormat", "Graph", "Port"]

FORMATS: dict[str, type[FileFormat]] = {}
"""The formats that ``export`` can write, by name."""
