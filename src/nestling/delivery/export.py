"""``export``: a network as a file that runs without torch, checked in its own runtime before it is delivered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling.cascade import Cascade
from nestling.data import Data
from nestling.delivery.about import Known, data_record
from nestling.delivery.every_width import cuts_of, written_every_width
from nestling.delivery.formats import FORMATS, FileFormat, Graph
from nestling.delivery.graphs import GRAPHS
from nestling.delivery.options import Layout
from nestling.delivery.source import as_known, source_of
from nestling.delivery.verify import latencies_of, verified
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.prediction import Calibration, CutLike, Likelihood, likelihood_named
from nestling.pruning import Pruned
from nestling.reading import Cut
from nestling.runtime import Session
from nestling.storage import make_folder, put, written_whole
from nestling.training import Run


@dataclass(frozen=True)
class Exported:
    """What ``export`` wrote; it prints as one line.

    Attributes:
        files: The files, the main one first.
        bytes: Their size together.
        difference: The largest difference from torch that was seen, relative to the largest answer.
        latency_ms: The median for one example in the file's runtime on this CPU.
        about: The record that is in the file: inputs, outputs, classes, cut, costs, calibration and versions.
        whole: Bytes and milliseconds of the network at full width, written and measured in the same way; None if the
            file is of the whole network, or was not compared.
        widths: Of a file of several widths the milliseconds of each, by the name of its cut.

    Examples:
        >>> exported.files[0].name, exported.difference < 1e-4, exported.about["name"]
        ('digits.onnx', True, '0.5')
    """

    files: tuple[Path, ...]
    bytes: int
    difference: float
    latency_ms: float
    about: Mapping[str, Any] = field(repr=False)
    whole: tuple[int, float] | None = None
    widths: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        at = "".join(f", {latency:.3g} ms at {name}" for name, latency in self.widths.items())
        alone = f", {self.latency_ms:.3g} ms"
        text = f"{self.files[0]}: {self.bytes:,} bytes{at or alone} for one example here"
        if self.whole is not None:
            size, latency = self.whole
            text += f" (the whole network: {size:,} bytes, {latency:.3g} ms)"
        return f"{text}; at most {self.difference:.1g} from torch, relative to the largest answer"


def export(
    network: nn.Module | Pruned | Run,
    path: str | PathLike[str],
    example: Any = None,  # noqa: ANN401
    *,
    cut: float | Mapping[str, int] | Cut | None = None,
    to: str = "onnx",
    uncertainty: str | None = None,
    widths: Sequence[CutLike] | str | None = None,
    cascade: Cascade | None = None,
    data: Data | Mapping[str, Any] | None = None,
    likelihood: str | Likelihood | None = None,
    calibration: Calibration | Sequence[Calibration] | None = None,
    run: str | None = None,
    layout: Layout = "nchw",
    as_bytes: bool | None = None,
    compare: bool = True,
) -> Exported:
    """Write a network as a file that runs without torch and nestling.

    The file is opened in its own runtime and compared with torch at batches of 1, 2 and 64, on inputs that are not the
    example. It is moved to its place only if it agrees.

    Args:
        network: A nested network, a run, a pruned network, or any module. It is not changed.
        path: Where to write; the suffix is the format's.
        example: A batch of inputs, needed for a plain module: a tensor, a tuple of arguments, or a dictionary.
        cut: For a nested network, the cut to deliver: a fraction, widths by group, or a Cut (None: the whole network).
        to: The format: ``"onnx"``, ``"openvino"`` or ``"executorch"``.
        uncertainty: How the file finds its own uncertainty: ``"draws"`` averages draws of the weights, whose noise is
            an input that ``nl.runtime.open`` makes from a seed; ``"moments"`` carries means and variances through the
            network in one pass; None is the distribution of the mean weights.
        widths: For a nested network or a run, write one ONNX file for several cuts, the width of which is chosen when
            it is opened: a list of cuts, or ``"all"`` for those of the run's recipe.
        cascade: For a file of several widths, a cascade of the mean weights (``samples=0``), which
            ``nl.runtime.open_cascade`` runs. The file has the cuts of its stages, beside those of ``widths``.
        data: The data that the network was trained on, or their record in a run. With it the file normalises its inputs
            itself, and knows the names of the classes.
        likelihood: What the outputs mean; by default what the network was trained with, and categorical with ``data``
            of classes. Without one the file gives the outputs as they are.
        calibration: The temperature, which is part of the file, and thresholds of conformal sets; by default those of
            the run. With ``widths`` a list, of which each is for the cut that it was fitted at.
        run: The name of the run, for the record.
        layout: ``"nhwc"`` for images whose channels come last.
        as_bytes: Whether inputs are bytes from 0 to 255, or numbers from 0 to 1; by default as in the data.
        compare: Also write the network at full width to a temporary folder, to set size and latency beside it.

    Returns:
        What was written, with its size, latency and largest difference from torch. It prints as one line.

    Raises:
        ArgumentError: If an argument does not fit, the format is not installed, or it lacks an operation.
        TraceError: If the network can't be exported for batches of any size.
        RunError: If nothing can be written there.
        NestlingError: If the file's answers are not torch's; then nothing is written.

    Examples:
        >>> nl.export(run, "quarter.onnx", cut=0.25, compare=False)
        quarter.onnx: ... bytes, ... ms for one example here; at most ... from torch, relative to the largest answer
    """
    form, target = _format(to), Path(path)
    if form.suffix and target.suffix != form.suffix:
        raise ArgumentError("path", target.name, f"a name that ends in {form.suffix}", f"Format {to!r} has it.")
    form.check_installed()
    if uncertainty not in GRAPHS:
        known_ways = ", ".join(map(repr, GRAPHS))
        raise ArgumentError("uncertainty", repr(uncertainty), f"one of {known_ways}", "Check its spelling.")
    meant = None if likelihood is None else likelihood_named(likelihood)
    if cascade is not None:
        meant = meant or cascade.likelihood
    several = None if calibration is None or isinstance(calibration, Calibration) else list(calibration)
    if several is not None and widths is None and cascade is None:
        raise ArgumentError("calibration", "a list", "one calibration for a file of one cut", "Pass that of the cut.")
    one = calibration if isinstance(calibration, Calibration) else None
    given = Known(data_record(data), meant, one, run)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        source = source_of(network, example, cut, as_known(network, given, cut), layout, as_bytes)
        if widths is not None or cascade is not None:
            if cut is not None or uncertainty is not None or to != "onnx":
                needed = "left out, and to='onnx', for a file of several widths"
                raise ArgumentError("cut, uncertainty or to", "some", needed, "Leave out widths and cascade.")
            by_row, chosen = several if one is None else [one], cuts_of(network, widths, cascade)
            place, size, worst, by_cut, about = written_every_width(network, source, chosen, target, by_row, cascade)
            return Exported((place,), size, worst, max(by_cut.values()), about, widths=by_cut)
        make = GRAPHS[uncertainty]
        whole = make(source.whole()) if compare and not source.is_whole else None
        return _written(form, make(source), target, whole)


def _format(name: str) -> FileFormat:
    if name not in FORMATS:
        raise ArgumentError("to", repr(name), f"one of {', '.join(FORMATS)}", "Check its spelling.")
    return FORMATS[name]()


def _written(form: FileFormat, graph: Graph, target: Path, whole: Graph | None) -> Exported:
    """Write a graph to a temporary folder, verify it there, measure it beside the whole one, and put it in place."""
    make_folder(target.parent)
    with written_whole(target) as folder:
        written, size, session = _opened(form, graph, folder / "own", target.name)
        difference = verified(graph, session)
        if whole is None:
            (latency,), beside = latencies_of([(graph, session)]), None
        else:
            _, whole_size, other = _opened(form, whole, folder / "whole", target.name)
            latency, whole_latency = latencies_of([(graph, session), (whole, other)])
            beside = (whole_size, whole_latency)
            del other  # some runtimes hold their files open
        del session
        places = put(written, folder / "own", target.parent)
    return Exported(tuple(places), size, difference, latency, graph.about, beside)


def _opened(form: FileFormat, graph: Graph, folder: Path, name: str) -> tuple[tuple[Path, ...], int, Session]:
    """The files of a graph in a new folder, their size, and the network opened from them."""
    folder.mkdir()
    files = form.write(graph, folder / name)
    try:
        session = form.opened(files[0])
    except RunError as error:
        advice = "Replace the operation that it names in the network's code, or choose another format."
        raise NestlingError(f"the file that was written {error.wrong}. {advice}") from None
    return files, sum(file.stat().st_size for file in files), session
