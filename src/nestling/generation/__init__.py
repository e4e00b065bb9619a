"""Texts from a network that predicts the next token, by plain or by speculative decoding."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.generation.generate import generate
    from nestling.generation.generated import Generated

__all__ = ["Generated", "generate"]

imports_lazily(__name__)
