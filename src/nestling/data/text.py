"""Texts with labels, read from .tsv and .csv files, and the tensors that a user's tokenizer makes of them."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nestling.data.faults import DamagedError, DataError
from nestling.data.next_bytes import BYTES, next_bytes
from nestling.data.parts import Part
from nestling.data.split import Split
from nestling.errors import ArgumentError

Tokenizer = Callable[..., Any]
"""A tokenizer of Hugging Face's, or a function of a list of texts that returns tensors by name, which are the arguments
of the network, with a row for each text."""
TABLES = {".tsv": "\t", ".csv": ","}
"""Separators of tables by suffix; .csv tables may have quotes."""
LABEL = "label"


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of one part and their labels (N,), before a tokenizer makes tensors of them.

    ``where`` names them in error messages; ``classes`` are the names of the classes if only the file gives them.
    """

    texts: list[str]
    labels: Tensor
    where: str
    classes: tuple[str, ...] = ()

    def tokenised(self, tokenizer: "Tokenizer | Literal['bytes'] | None", max_length: int) -> Part:
        """The part whose inputs are what the tokenizer returns; Hugging Face's pad and cut to ``max_length``."""
        if tokenizer == BYTES:
            return next_bytes(self.texts, max_length, self.where)
        if isinstance(tokenizer, str):
            needed = f"a tokenizer, or {BYTES!r} to predict each next byte of a text"
            raise ArgumentError("tokenizer", repr(tokenizer), needed, "transformers.AutoTokenizer is one.")
        if tokenizer is None:
            needed = f"one in nestling.data.load, to make tensors of the texts of {self.where}"
            raise ArgumentError("tokenizer", "none", needed, "transformers.AutoTokenizer is one.")
        made = tokenizer(self.texts, **_options(tokenizer, max_length))
        tensors = dict(made.items()) if hasattr(made, "items") else {}
        if not tensors or not all(self._has_rows(values) for values in tensors.values()):
            shapes = (f"{name} {getattr(values, 'shape', type(values).__name__)}" for name, values in tensors.items())
            given = f"a function that returns {', '.join(shapes) or type(made).__name__}"
            needed = f"one that returns tensors by name, each with a row for each of the {len(self.texts)} texts"
            raise ArgumentError("tokenizer", given, needed, "Let it pad the texts.")
        return Part(Split(tensors, self.labels), classes=self.classes)

    def _has_rows(self, values: object) -> bool:
        return isinstance(values, Tensor) and values.shape[:1] == self.labels.shape


def read_sentences(paths: Sequence[Path], num_classes: int) -> Texts:
    """A table of GLUE's: one column is called ``label``, with numbers from 0, and the other one has the sentences."""
    table = _table(paths[0])
    head, rows = table[0], table[1:]
    if len(head) != 2 or LABEL not in head:
        raise DamagedError(f"{paths[0]} has the columns {', '.join(head)}, not a sentence and a label. Fetch it again.")
    place = head.index(LABEL)
    texts, labels = [row[1 - place] for row in rows], [row[place] for row in rows]
    return Texts(texts, _numbered(labels, range(num_classes), paths[0]), str(paths[0]))


def read_news(paths: Sequence[Path], num_classes: int) -> Texts:
    """A table of AG News, without a head: the class from 1, the title, and the description, which are joined.

    A backslash stands for the end of a line there, and becomes a space.
    """
    rows = _table(paths[0])
    if len(rows[0]) != 3:
        given = f"{len(rows[0])} columns"
        raise DamagedError(f"{paths[0]} has {given}, not class, title and description. Fetch it again.")
    texts = [f"{title} {description}".replace("\\", " ") for _, title, description in rows]
    return Texts(texts, _numbered([row[0] for row in rows], range(1, num_classes + 1), paths[0]), str(paths[0]))


def read_table(path: Path) -> Texts:
    """A user's table with a head: a column ``label``, names or numbers of classes, and one other column of texts."""
    table = _table(path)
    head, rows = [name.strip() for name in table[0]], table[1:]
    if len(head) != 2 or LABEL not in head:
        needed = f"two columns, one of which is called {LABEL!r}"
        raise DataError(f"{path} has the columns {', '.join(head)}, but needs {needed}. Write its first line so.")
    if not rows:
        raise DataError(f"{path} has no texts under its first line. Add some.")
    place = head.index(LABEL)
    labels = [row[place] for row in rows]
    classes = sorted(set(labels), key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    numbers = torch.tensor([classes.index(label) for label in labels])
    return Texts([row[1 - place] for row in rows], numbers, str(path), tuple(classes))


def _options(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    """What a tokenizer of Hugging Face's has to be told; a function of the user's decides by itself."""
    if not hasattr(tokenizer, "model_input_names"):
        return {}
    return {"padding": "max_length", "truncation": True, "max_length": max_length, "return_tensors": "pt"}


def _numbered(labels: Sequence[str], names: range, path: Path) -> Tensor:
    """The labels from 0; they are written as the numbers of ``names``."""
    numbers = {str(name): number for number, name in enumerate(names)}
    unknown = next((label for label in labels if label not in numbers), None)
    if unknown is not None:
        raise DamagedError(f"{path} has the label {unknown!r}, not one of {names[0]} to {names[-1]}. Fetch it again.")
    return torch.tensor([numbers[label] for label in labels], dtype=torch.int64)


def _table(path: Path) -> list[list[str]]:
    """The rows of a table, at least one, all of the same number of columns."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=TABLES[path.suffix], quoting=quoting, strict=True)
        rows = [row for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as fault:
        raise DamagedError(f"{path} is not a table in UTF-8: {fault}. Save it so, or fetch it again.") from fault
    if not rows:
        raise DamagedError(f"{path} is empty. Fetch it again.")
    short = next((number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if short is not None:
        given = f"row {short} has {len(rows[short - 1])} columns, the first one {len(rows[0])}"
        raise DamagedError(f"{path}: {given}. Mend that row, or fetch it again.")
    return rows
