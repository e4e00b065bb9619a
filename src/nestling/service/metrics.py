"""What a service counts, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from nestling.service.engine import ANSWERED

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper ends of the bins of latency."""
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of requests by status, of their latency, and of examples and their uncertainty by width.

    ``num_open`` is the number of requests that are not answered yet.
    """

    def __init__(self) -> None:
        self.num_open = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._bins = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._examples: Counter[str] = Counter()
        self._nats: Counter[str] = Counter()
        self._unanswered = 0

    def ended(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered with a status."""
        self._requests[route, status] += 1
        if status == 200:
            self._bins[bisect_left(SECONDS, seconds)] += 1
            self._seconds += seconds

    def answered(self, width: str, outputs: Mapping[str, np.ndarray]) -> None:
        """Count examples that ended at a width, their entropy, and how many of them got no answer."""
        self._examples[width] += len(next(iter(outputs.values())))
        if ANSWERED in outputs:
            self._unanswered += int((~outputs[ANSWERED]).sum())
        if "entropy" in outputs:
            entropy = outputs["entropy"]
            self._nats[width] += float(entropy.reshape(len(entropy), -1).mean(1).sum())  # type: ignore[assignment]

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All counts; ``gauges`` are what holds at this moment, each by its name with a line that says what it is."""
        lines = _family("requests_total", "counter", "Requests by route and status.")
        lines += [
            _line("requests_total", count, route=route, status=status)
            for (route, status), count in self._requests.items()
        ]
        lines += _family(
            "request_seconds", "histogram", "Seconds from a request's last byte to its answer (status 200)."
        )
        total = 0
        for end, count in zip((*SECONDS, "+Inf"), self._bins, strict=True):
            total += count
            lines.append(_line("request_seconds_bucket", total, le=end))
        lines += [_line("request_seconds_sum", self._seconds), _line("request_seconds_count", total)]
        lines += _family("examples_total", "counter", "Examples, by the width at which they ended.")
        lines += _by_width("examples_total", self._examples.items())
        lines += _family("unanswered_total", "counter", "Examples to which the last width of a cascade had no answer.")
        lines += [_line("unanswered_total", self._unanswered)]
        lines += _family(
            "entropy_nats_total", "counter", "Sum of the entropy of answers, by width: divide by examples."
        )
        lines += _by_width("entropy_nats_total", self._nats.items())
        for name, (about, value) in gauges.items():
            lines += [*_family(name, "gauge", about), _line(name, value)]
        return "\n".join(lines) + "\n"


def _by_width(name: str, values: Iterable[tuple[str, float]]) -> list[str]:
    return [_line(name, value, width=width) for width, value in values]


def _family(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP nestling_{name} {about}", f"# TYPE nestling_{name} {kind}"]


def _line(name: str, value: float, **labels: object) -> str:
    written = ",".join(f'{label}="{_escaped(str(own))}"' for label, own in labels.items())
    return f"nestling_{name}{{{written}}} {value!r}" if written else f"nestling_{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
