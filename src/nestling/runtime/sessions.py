"""The runtimes that open files, by the suffix of the file."""

from typing import Protocol
from pathlib import Path

from nestling.runtime.onnx import OnnxSession
from nestling.runtime.session import Session


class Opens(Protocol):
    """What opens a file in its runtime."""

    def __call__(self, path: Path, *, threads: int | None = None) -> Session:
        """The open file."""


SESSIONS: dict[str, Opens] = {".onnx": OnnxSession}
"""The runtimes by the suffix of their files."""
