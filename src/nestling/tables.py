"""Plain text tables: words to the left, numbers to the right."""

from collections.abc import Sequence

from nestling.errors import printable


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 0) -> str:
    """A table with a line under its header; a column is numeric if its first cell begins like a number.

    The first ``names`` columns are words, however they begin. What a terminal would act on is written as escapes, since
    cells may have a stranger's names.
    """
    table = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    numeric = [
        column >= names and bool(rows) and rows[0][column].startswith(tuple("0123456789-+."))
        for column in range(len(header))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def percent(share: float) -> str:
    """The share of its blocks that a cut keeps."""
    return f"{share:.1%}"


def thousands(number: int) -> str:
    """A count in three digits: 512, 8.2k, 1.3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
