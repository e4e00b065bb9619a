"""The options of ``serve``, in a file that imports neither torch nor a web framework."""

from dataclasses import dataclass, fields

from nestling.arguments import count, finite_number, natural_number, positive_number
from nestling.errors import RangeError


@dataclass(frozen=True)
class Serving:
    """How a network is served: what the service aims at, and the most that it takes.

    Examples:
        >>> from nestling.service import Serving
        >>> Serving(target_ms=50.0).queue
        256
    """

    target_ms: float = 100.0
    """The time within which 99 of 100 requests should be answered: under load the width is lowered to hold it."""
    max_batch: int = 32
    """The most examples that run together, and the most in one request."""
    collect_ms: float = 1.0
    """How long the first example of a batch waits for others."""
    queue: int = 256
    """The most examples that wait; a request beyond it gets status 429."""
    max_requests: int = 512
    """The most requests that are open at a time; a request beyond it gets status 429."""
    max_body: int = 16 * 2**20
    """The most bytes of a request."""
    max_pixels: int = 16_000_000
    """The most pixels of an image, before it is resized."""
    receive_seconds: float = 10.0
    """The most time that a client may take to send a request."""
    threads: int = 0
    """Threads of the processor that one batch runs on; 0 leaves the choice to the runtime."""

    def __post_init__(self) -> None:
        for name in ("target_ms", "receive_seconds"):
            positive_number(name, getattr(self, name))
        for field in fields(self):
            if field.type is int and field.name != "threads":
                count(field.name, getattr(self, field.name), "a limit of the service")
        natural_number("threads", self.threads)
        if finite_number("collect_ms", self.collect_ms) < 0:
            raise RangeError("collect_ms", self.collect_ms, "at least 0", "Pass 0 to run each example at once.")
        if self.queue < self.max_batch:
            needed = f"at least max_batch ({self.max_batch})"
            raise RangeError("queue", self.queue, needed, "A request of that many examples must fit into it.")
