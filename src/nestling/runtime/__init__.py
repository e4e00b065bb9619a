"""Runtime: exported files opened with numpy and their runtime alone, without torch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.runtime.answers import Answers
    from nestling.runtime.network import BATCH, Network, open
    from nestling.runtime.onnx import OnnxSession
    from nestling.runtime.record import FORMAT, KEY
    from nestling.runtime.session import Session

__all__ = ["Answers", "Network", "Session", "open"]

imports_lazily(__name__)
