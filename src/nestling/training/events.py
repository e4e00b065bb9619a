"""TensorBoard events of a run."""

from importlib import import_module
from pathlib import Path
from typing import Any

from nestling.errors import ArgumentError


def write_events(folder: Path, line: dict[str, Any]) -> None:
    """Add the numbers of a line of the log to the events in a folder."""
    with event_writer()(str(folder)) as writer:
        for name, value in _flat("", line):
            writer.add_scalar(name, value, line["step"])


def event_writer() -> Any:  # noqa: ANN401
    """The class that writes events, or an error that says how to get it."""
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        given, needed = "True, and TensorBoard is not installed", "False, or TensorBoard installed"
        raise ArgumentError("tensorboard", given, needed, "pip install nestling[tensorboard]") from None


def _flat(prefix: str, values: dict[str, Any]) -> list[tuple[str, float]]:
    numbers: list[tuple[str, float]] = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        numbers += _flat(f"{path}/", value) if isinstance(value, dict) else [(path, float(value))]
    return numbers
