"""The errors of the library: each says what was given, what is needed and what to do."""


class NestlingError(Exception):
    """Parent of every error that nestling raises on purpose."""


class ArgumentError(NestlingError, ValueError):
    """An argument that cannot be used: its ``name``, what was ``given``, what is ``needed``, and ``advice``."""

    def __init__(self, name: str, given: object, needed: str, advice: str) -> None:
        self.name = name
        self.given = given
        self.needed = needed
        self.advice = advice
        super().__init__(f"{name}: got {given}, but it must be {needed}. {advice}")


class RangeError(ArgumentError):
    """A number or a tensor's value lies outside the range in which it means something."""


class ShapeError(ArgumentError):
    """A tensor's shape does not fit, or two shapes do not fit each other."""


class DtypeError(ArgumentError, TypeError):
    """A value of the wrong type, such as an integer tensor where real numbers are needed."""


class NonFiniteError(ArgumentError):
    """A tensor holds NaN or infinity where every entry must be a finite number."""


class TraceError(NestlingError):
    """A network whose graph could not be recorded; the message names the line that stands in the way."""
