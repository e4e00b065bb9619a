"""Runtime: exported files opened with numpy and their runtime alone, without torch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.runtime.session import Session
    from nestling.runtime.uncertainty import noise_for

__all__ = ["Session", "noise_for"]

imports_lazily(__name__)
