"""A request that is refused: the status of the answer, and one line that says why."""

from collections.abc import Mapping

from nestling.errors import NestlingError

_LONGEST = 300


class Refused(NestlingError):
    """A request that can't be answered, with the HTTP ``status``, one line and the ``headers`` of the answer."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.headers = dict(headers or {})
        line = " ".join(reason.split())
        super().__init__(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}...")


def shown(value: object) -> str:
    """A value out of a request, short enough for a message."""
    text = repr(value[:60] if isinstance(value, str | list) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
