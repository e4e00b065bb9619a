"""Texts as rows of bytes, at each of which a network learns to predict the next byte."""

from collections.abc import Sequence
from pathlib import Path

import torch

from nestling.data.faults import DataError
from nestling.data.parts import Part
from nestling.data.split import Split

BYTES = "bytes"
"""The tokenizer of ``load`` that makes such rows."""
PLAIN_TEXTS = (".txt",)
"""Suffixes of files that are one text."""
TOKENS = "tokens"
"""The argument by which a network takes a row."""
NAMES = tuple(map(str, range(256)))


def next_bytes(texts: Sequence[str | bytes], length: int, where: str) -> Part:
    """Rows of ``length`` bytes (N, length), each with the bytes that come one later, as tokens and targets.

    The texts are one long text, a line for each, that is cut into rows; what is left at its end is not used.
    """
    encoded = (text.encode() if isinstance(text, str) else text for text in texts)
    stream = torch.frombuffer(bytearray(b"\n".join((*encoded, b""))), dtype=torch.uint8).long()
    rows = (len(stream) - 1) // length
    if rows < 1:
        given = f"{len(stream)} bytes of text"
        raise DataError(f"{where} has {given}, but a row needs {length + 1}. Pass more text, or a lower max_length.")
    tokens, targets = (stream[first : first + rows * length].view(rows, length).clone() for first in (0, 1))
    return Part(Split({TOKENS: tokens}, targets), classes=NAMES, task="language")


def read_plain(path: Path, length: int) -> Part:
    """The rows of a file that is one text."""
    return next_bytes([path.read_bytes().removesuffix(b"\n")], length, str(path))
