"""The runtimes that open files, by the suffix of the file."""

from pathlib import Path
from typing import Protocol

from nestling.runtime.executorch import ExecuTorchSession
from nestling.runtime.onnx import OnnxSession
from nestling.runtime.openvino import OpenVINOSession
from nestling.runtime.session import Choose, Session


class Opens(Protocol):
    """What opens a file in its runtime: ``choose`` fixes open sizes, ``threads`` is the number of CPU threads."""

    def __call__(self, path: Path, *, choose: Choose | None = None, threads: int | None = None) -> Session:
        """The open file."""


SESSIONS: dict[str, Opens] = {".onnx": OnnxSession, ".xml": OpenVINOSession, ".pte": ExecuTorchSession}
"""The runtimes by the suffix of their files."""
