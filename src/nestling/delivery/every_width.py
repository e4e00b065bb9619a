"""The file of every width, written whole: it is verified at each of its cuts before it is put in place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from nestling.cascade import Cascade
from nestling.delivery.all_widths import all_widths_model
from nestling.delivery.cascaded import cascade_record, with_its_cuts
from nestling.delivery.deployable import ports_of
from nestling.delivery.formats import Graph
from nestling.delivery.graphs import plain_graph
from nestling.delivery.source import Source
from nestling.delivery.verify import check_difference, latencies_of, worst_difference
from nestling.errors import ArgumentError
from nestling.prediction import Calibration, CutLike
from nestling.reading import make_cut
from nestling.runtime import OnnxSession, open_cascade
from nestling.storage import make_folder, put, written_whole
from nestling.training import Run

CUTS = (0.25, 0.5, 0.75, 1.0)
"""The cuts of a file of every width, where neither the caller nor a run names some."""


def cuts_of(network: object, widths: Sequence[CutLike] | str | None, cascade: Cascade | None = None) -> list[CutLike]:
    """The cuts of a file: those that are given, or for ``"all"`` those of the run's recipe; and those of a cascade."""
    cuts = [] if widths is None else _named_cuts(network, widths)
    return cuts if cascade is None else with_its_cuts(cuts, cascade)


def _named_cuts(network: object, widths: Sequence[CutLike] | str) -> list[CutLike]:
    if isinstance(widths, str):
        if widths != "all":
            raise ArgumentError("widths", repr(widths), "'all', or a list of cuts", "Pass [0.25, 0.5, 1.0].")
        return list(network.recipe.cuts if isinstance(network, Run) else CUTS)
    return list(widths)


def written_every_width(
    network: object,
    source: Source,
    cuts: Sequence[CutLike],
    target: Path,
    calibrations: Sequence[Calibration] | None = None,
    cascade: Cascade | None = None,
) -> tuple[Path, int, float, dict[str, float], Mapping[str, Any]]:
    """Write one ONNX file for several cuts; give it with its size, difference, milliseconds by cut, and record.

    A ``cascade`` of these cuts is part of the record.

    Every cut is opened with its sizes fixed, and compared with the extracted network at the batches of ``verified``.
    Each cut has a calibration of its own: one of ``calibrations``, or by default that of the run.
    """
    nested = source.nested
    if nested is None:
        raise ArgumentError("widths", "a plain network", "a nested network, or a run", "Nest it to cut it.")
    source = replace(source, known=replace(source.known, calibration=None))
    wanted = [cut if isinstance(cut, float | int) else make_cut(nested.groups, cut) for cut in cuts]
    if calibrations is None:
        of_run = [network.calibration(cut) for cut in wanted] if isinstance(network, Run) else []
        calibrations = [calibration for calibration in of_run if calibration is not None]
    ports = ports_of(source.network, source.example)
    with_cascade = {} if cascade is None else {"cascade": cascade_record(cascade, nested)}

    def graph_of(plain: nn.Module, temperature: Callable[[], Tensor]) -> Graph:
        graph = plain_graph(replace(source, network=plain), ports, temperature)
        return replace(graph, about={**graph.about, **with_cascade})

    model = all_widths_model(nested, wanted, graph_of, quality=_quality(network), calibrations=calibrations)
    make_folder(target.parent)
    with written_whole(target) as folder:
        path = folder / target.name
        path.write_bytes(model.SerializeToString(deterministic=True))
        rows = OnnxSession(path).about["widths"]["table"]
        worst, opened = 0.0, []
        by_cut = {calibration.cut: calibration for calibration in calibrations}
        for row in rows:
            cut = make_cut(nested.groups, row["cut"])
            known = replace(source.known, calibration=by_cut.get(cut))
            graph = plain_graph(replace(source.at(cut, row["cut"]), known=known))
            session = _Fixed(path, row["sizes"])
            worst = max(worst, worst_difference(graph, session))
            opened.append((graph, session))
        check_difference(worst)
        latencies = dict(zip((row["name"] for row in rows), latencies_of(opened), strict=True))
        about, size = opened[-1][1].about, path.stat().st_size
        del opened, session
        if with_cascade:
            open_cascade(path)  # or an error, before anything is put in place
        (place,) = put((path,), folder, target.parent)
    return place, size, worst, latencies, about


class _Fixed(OnnxSession):
    """A file that is open at one of its cuts, and called with the inputs of the network alone."""

    def __init__(self, path: Path, sizes: Mapping[str, int]) -> None:
        super().__init__(path, choose=lambda _: sizes)
        self._fills = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for an array per input of the network."""
        return super().run({**arrays, **self._fills})


def _quality(network: object) -> dict[str, float] | None:
    """The validation accuracy of a run's weights, by the name of the cut, where there is one."""
    kept = [line for line in network.log if line.get("kept")] if isinstance(network, Run) else []
    scores = kept[-1]["validation"] if kept else {}
    accuracies = {f"{float(cut):g}": figures["accuracy"] for cut, figures in scores.items() if "accuracy" in figures}
    return accuracies or None
