"""Service: a network at several widths behind HTTP, which chooses the width by the load."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.service.application import application
    from nestling.service.engine import Engine
    from nestling.service.file_engine import FileEngine
    from nestling.service.options import Serving
    from nestling.service.server import serve
    from nestling.service.torch_engine import TorchEngine

__all__ = ["Engine", "FileEngine", "Serving", "TorchEngine", "application", "serve"]

imports_lazily(__name__)
