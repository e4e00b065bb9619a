"""Plain text tables: words to the left, numbers to the right."""

from collections.abc import Sequence

from nestling.errors import printable


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 0) -> str:
    """A table with a line under its header; a column is numeric if its first cell begins like a number.

    What a terminal would act on is written as escapes, since the names in cells may come from somebody else's files.

    Args:
        header: The names of the columns.
        rows: One list of texts per row, as long as the header.
        names: The first so many columns are words, however they begin.

    Returns:
        Lines of text; words stand to the left, numbers to the right.

    Examples:
        >>> from nestling.report import text_table
        >>> print(text_table(["cut", "accuracy"], [["half", "91.5"], ["whole", "93.25"]]))
        cut    accuracy
        ---------------
        half       91.5
        whole     93.25
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
