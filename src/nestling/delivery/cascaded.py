"""A cascade in a file of several widths: the cuts that it adds to the file, and its record."""

from collections.abc import Sequence
from typing import Any

from nestling.cascade import Cascade, Stage
from nestling.delivery.source import CutLike
from nestling.errors import ArgumentError
from nestling.reading import make_cut
from nestling.running import Nested


def with_its_cuts(cuts: Sequence[CutLike], cascade: Cascade) -> list[CutLike]:
    """Some cuts of a file, and after them those of the cascade's stages that are not among them."""
    groups = cascade.nested.groups
    known = {make_cut(groups, cut) for cut in cuts}
    return [*cuts, *(_as_asked(stage) for stage in cascade.running if stage.cut not in known)]


def cascade_record(cascade: Cascade, nested: Nested) -> dict[str, Any]:
    """What a file says of its cascade: the stages that run, each with what its answers are compared with.

    Raises:
        ArgumentError: if the cascade is of another network, or of averaged draws, which a file does not make.
    """
    if cascade.nested is not nested:
        raise ArgumentError("cascade", "one of another network", "one of the network that is written", "Fit it anew.")
    if averages_draws(cascade):
        given = f"one that averages {cascade.samples} draws of the weights"
        raise ArgumentError("cascade", given, "one of the mean weights, which the file has", "Fit it with samples=0.")
    saved = cascade.to_dict()
    kept = ("score", "goal", "guarantee", "num_examples", "set_thresholds")
    columns = ("name", "cut", "macs", "ms", "temperature", "threshold")
    stages = [{name: stage.to_dict()[name] for name in columns} for stage in cascade.running]
    return {name: saved[name] for name in kept} | {"stages": stages}


def averages_draws(cascade: Cascade) -> bool:
    """Whether its answers are averages over draws of the weights, which thresholds of mean weights do not fit."""
    return bool(cascade.samples and cascade.nested.num_uncertain)


def _as_asked(stage: Stage) -> CutLike:
    """The fraction that a stage is named by, or its cut."""
    try:
        return float(stage.name.partition(",")[0])
    except ValueError:
        return stage.cut
