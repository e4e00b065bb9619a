"""Runtime: exported files opened with numpy and their runtime alone, without torch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.runtime.onnx import OnnxSession
    from nestling.runtime.record import KEY, record_in
    from nestling.runtime.session import Session

__all__ = ["Session"]

imports_lazily(__name__)
