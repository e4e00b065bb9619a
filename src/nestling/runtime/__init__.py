"""Runtime: exported files opened with numpy and their runtime alone, without torch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.runtime.session import Session
    from nestling.runtime.widths import RECORD, inputs_at, options_at, record_of, reshape_to, sizes_at

__all__ = ["Session", "inputs_at", "options_at", "record_of", "reshape_to", "sizes_at"]

imports_lazily(__name__)
