"""The errors of data: each message is one line, which says what is missing or wrong, and what to do."""

from nestling.errors import NestlingError


class DataError(NestlingError):
    """Data that cannot be used as it is."""


class MissingError(DataError):
    """Data that was not found, and could not be fetched."""


class DamagedError(DataError):
    """A file whose content does not fit its name: truncated, altered, or of another format."""
