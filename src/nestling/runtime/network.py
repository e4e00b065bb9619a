"""``open``: a network from a file, which needs numpy and the runtime that the file is for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, DtypeError, RunError, ShapeError
from nestling.runtime.answers import Answers
from nestling.runtime.record import check_record
from nestling.runtime.session import Session
from nestling.runtime.sessions import SESSIONS
from nestling.runtime.uncertainty import normal_noise
from nestling.runtime.widths import Cut, calibrated_at, row_of

BATCH = "batch"
"""The open size that is the number of examples."""
SAMPLES = "samples"
"""The open size that is the number of weight samples, in a file that draws."""
NORMAL = "normal"
"""How an input is filled that a caller need not give: with standard normal noise."""


def open(path: str | PathLike[str], cut: Cut | None = None, *, threads: int | None = None) -> "Network":
    """Open a network that ``export`` wrote.

    Args:
        path: The file; its suffix says which runtime opens it.
        cut: For a file of several widths, the one to run at: a fraction, the name of a row of its table, or widths by
            group. It is fixed while the file is open, which is as fast as a file of that cut alone. None leaves it to
            each call of ``predict``.
        threads: CPU threads; None leaves the choice to the runtime.

    Returns:
        The network, ready to predict.

    Raises:
        ArgumentError: If there is no runtime for such a file, it is not installed, or the file has no such cut.
        RunError: If the file is not there, is damaged, or is not one of nestling's.

    Examples:
        >>> network = nl.runtime.open("digits.onnx")
        >>> answers = network.predict(data.test.inputs[:3].numpy())  # as they are in the data, not normalised
        >>> answers.probs.shape, len(answers.names)
        ((3, 10), 3)
    """
    return opened(path, None if cut is None else lambda _: cut, threads)


def opened(
    path: str | PathLike[str], cut_of: Callable[[Mapping[str, Any]], Cut] | None, threads: int | None
) -> "Network":
    """Open a network at the cut that a function finds in the record of the file."""
    place = Path(path)
    if place.suffix not in SESSIONS:
        needed = f"a file that ends in {', '.join(SESSIONS)}"
        raise ArgumentError("path", place.name, needed, "Give the file that nl.export wrote.")
    if not place.is_file():
        raise RunError(place, "is not a file", "Give the file that nl.export wrote.")

    def sizes(about: Mapping[str, Any]) -> Mapping[str, int]:
        check_record(about, place)
        assert cut_of is not None
        chosen: dict[str, int] = row_of(about, cut_of(about))["sizes"]
        return chosen

    session = SESSIONS[place.suffix](place, choose=None if cut_of is None else sizes, threads=threads)
    check_record(session.about, place)
    return Network(session, None if cut_of is None else cut_of(session.about))


@dataclass(frozen=True, eq=False)
class Network:
    """An open file of a network, which predicts with numpy and the file's runtime alone.

    Attributes:
        session: The file in its runtime.
        cut: The cut at which a file of several widths was opened; None for other files.

    Examples:
        >>> network = nl.runtime.open("digits.onnx")
        >>> network.about["classes"][:3], network.about["inputs"][0]["shape"]
        (['0', '1', '2'], ['batch', 1, 8, 8])
    """

    session: Session = field(repr=False)
    cut: Cut | None = None

    @property
    def about(self) -> dict[str, Any]:
        """The record that the file was written with."""
        return self.session.about

    def __repr__(self) -> str:
        inputs = ", ".join(f"{port['name']} {port['dtype']} {tuple(port['shape'])}" for port in self.about["inputs"])
        kept = row_of(self.about, self.cut)["kept"]
        width = "" if kept is None else f", {kept:.1%} of its blocks"
        return f"Network({inputs} -> {', '.join(self.session.outputs)}{width})"

    def predict(
        self,
        inputs: np.ndarray | Mapping[str, np.ndarray],
        *,
        cut: Cut | None = None,
        samples: int | None = None,
        seed: int = 0,
    ) -> Answers:
        """The answers for a batch.

        Args:
            inputs: the input (B, ...) in the form that ``about["inputs"]`` says, or one example without the batch
                axis; for several inputs a dictionary of arrays by name.
            cut: for a file of several widths that was opened without one, the cut to run at (None: the largest).
            samples: how many weight samples to average over, in a file that draws; None for what the file says.
            seed: seed of the noise, in a file that draws.

        Returns:
            The outputs of the file, with what they mean.

        Raises:
            ArgumentError: if an input is missing, or its shape or dtype does not fit.
        """
        arrays, row = self.fitted(inputs), self._row(cut)
        sizes = {**self.about.get("sizes", {}), **row["sizes"], BATCH: len(next(iter(arrays.values())))}
        if samples is not None:
            sizes[SAMPLES] = samples
        for number, port in enumerate(port for port in self.about["inputs"] if "fill" in port):
            arrays[port["name"]] = _filled(port, sizes, seed + number)
        return Answers(self.session.run(arrays), calibrated_at(self.about, row))

    def fitted(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of a call by name, each with a batch axis and in the shape and dtype that the file takes."""
        wanted = [port for port in self.about["inputs"] if "fill" not in port]
        given = inputs if isinstance(inputs, Mapping) else {wanted[0]["name"]: np.asarray(inputs)}
        if given.keys() != {port["name"] for port in wanted}:
            needed = f"one array for each of {', '.join(port['name'] for port in wanted)}"
            raise ArgumentError("inputs", ", ".join(given) or "nothing", needed, "Pass a dictionary of arrays.")
        return {port["name"]: _fitted(np.asarray(given[port["name"]]), port) for port in wanted}

    def _row(self, cut: Cut | None) -> dict[str, Any]:
        """The row of the cut that a call runs at."""
        if cut is not None and self.cut is not None and cut != self.cut:
            advice = "Open the file without a cut to choose one at each call."
            raise ArgumentError("cut", cut, f"{self.cut}, at which the file was opened", advice)
        return row_of(self.about, self.cut if cut is None else cut)


def _fitted(array: np.ndarray, port: Mapping[str, Any]) -> np.ndarray:
    """An array with the shape and dtype of an input: with a batch axis, and bytes scaled where numbers are taken."""
    shape, wanted = port["shape"], np.dtype(port["dtype"])
    batched = array[None] if array.ndim == len(shape) - 1 and shape[0] == BATCH else array
    fits = batched.ndim == len(shape) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, batched.shape, strict=True)
    )
    if not fits:
        needed = f"of shape ({', '.join(map(str, shape))})"
        raise ShapeError(port["name"], f"shape {array.shape}", needed, "Resize or transpose it.")
    if batched.dtype == np.uint8 and wanted.kind == "f" and port.get("scale") == 1:
        scaled: np.ndarray = batched.astype(wanted) / wanted.type(255)
        return scaled
    if batched.dtype.kind == wanted.kind and np.can_cast(batched.dtype, wanted, "same_kind"):
        return batched.astype(wanted, copy=False)
    given, needed = f"an array of {batched.dtype}", f"of {wanted}, as it was exported"
    raise DtypeError(port["name"], given, needed, f"Pass .astype({wanted.name!r}) if the scale is right.")


def _filled(port: Mapping[str, Any], sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """An input that the caller does not give: standard normal noise, or zeros of which only the number matters.

    The noise of an example does not depend on the size of the batch.
    """
    unknown = [size for size in port["shape"] if isinstance(size, str) and size not in sizes]
    if unknown:
        needed, advice = f"one of {', '.join(sizes)}", "The file was not written by nl.export."
        raise ArgumentError(port["name"], f"an axis of size {unknown[0]!r}", needed, advice)
    shape = [sizes[size] if isinstance(size, str) else size for size in port["shape"]]
    dtype = np.dtype(port["dtype"])
    if port["fill"] != NORMAL:
        return np.zeros(shape, dtype)
    return normal_noise(shape, dtype, port["shape"].index(BATCH) if BATCH in port["shape"] else 0, seed)
