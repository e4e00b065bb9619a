"""The errors of the library: each says what was given, what is needed and what to do."""


class NestlingError(Exception):
    """The parent class of every error that nestling raises on purpose; names in its message can't act on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


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
    """A network whose graph could not be recorded; the message names the line that prevents it."""


class RunError(NestlingError):
    """A run folder, or a file in it, that can't be used: the error names the file, what is wrong and what to do."""

    def __init__(self, path: object, wrong: str, advice: str) -> None:
        self.path = path
        self.wrong = _one_line(wrong)
        self.advice = advice
        super().__init__(f"{path}: {self.wrong}. {advice}")


class BudgetError(NestlingError):
    """A budget that no network meets; ``smallest`` has the costs of the smallest network."""

    def __init__(
        self,
        budget: dict[str, float],
        smallest: dict[str, float],
        advice: str = "Raise the budget, or nest with fewer blocks that are always kept.",
    ) -> None:
        self.budget = budget
        self.smallest = smallest
        wanted, least = (", ".join(f"{name}={value:.6g}" for name, value in by.items()) for by in (budget, smallest))
        super().__init__(f"no network fits {wanted}; the smallest takes {least}. {advice}")


class ProcessError(NestlingError):
    """A run of several processes that can't go on because another process failed."""


class DivergenceError(NestlingError):
    """Training that reached NaN or infinity: the ``step``, the first ``place`` where it happened, and ``advice``.

    ``in_data`` says that the data are the cause, so that other training options would not help.
    """

    def __init__(self, step: int, place: str, advice: str, in_data: bool = False) -> None:
        self.step = step
        self.place = place
        self.advice = advice
        self.in_data = in_data
        super().__init__(f"step {step}: NaN or infinity in {place}. {advice}")


def printable(text: str, *, keep: str = "") -> str:
    """The text with each character that a terminal does not print, or acts on, as an escape such as \\x1b."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


_LONGEST = 300


def _one_line(text: str) -> str:
    """A text that may quote a file, on one line of limited length."""
    short = text[: 4 * _LONGEST]
    line = " ".join("".join(c if c.isprintable() else " " for c in short).split())
    return line if len(line) <= _LONGEST and len(text) == len(short) else line[: _LONGEST - 3] + "..."
