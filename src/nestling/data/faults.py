"""The errors of data: one line each, which says what was looked for or found wrong, and what to do."""

from nestling.errors import NestlingError


class DataError(NestlingError):
    """Data that cannot be used as it is."""


class MissingError(DataError):
    """Data that is not where it was looked for, and could not be fetched."""


class DamagedError(DataError):
    """A file that is not what its name promises: cut short, altered, or of another format."""
