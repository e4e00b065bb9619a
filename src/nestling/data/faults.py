"""The errors of data: each message is one line, which says what is missing or wrong, and what to do."""

from nestling.errors import NestlingError


class DataError(NestlingError):
    """Data that cannot be used as it is.

    Examples:
        >>> data.batches("held_out", 10)
        Traceback (most recent call last):
        nestling.data.faults.DataError: digits was loaded without a split 'held_out'; ...
    """


class MissingError(DataError):
    """Data that was not found, and could not be fetched; the message says which files to put where.

    Examples:
        >>> nl.data.load("photos/of/mine")
        Traceback (most recent call last):
        nestling.data.faults.MissingError: photos/of/mine does not exist. ...
    """


class DamagedError(DataError):
    """A file whose content does not fit its name: truncated, altered, or of another format.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("broken.npz").write_bytes(b"not an archive")
        >>> nl.data.load("broken.npz")
        Traceback (most recent call last):
        nestling.data.faults.DamagedError: ...
    """
