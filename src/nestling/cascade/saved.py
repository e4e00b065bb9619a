"""The parts of a cascade read back from JSON, each value checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from nestling.arguments import count, finite_number, inner_probability, natural_number, positive_number, probability
from nestling.cascade.comparison import Point
from nestling.cascade.guarantee import Guarantee
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT
from nestling.cascade.stages import Stage
from nestling.prediction import Calibration
from nestling.reading import Groups, make_cut

_COUNTS = ("num_examples", "num_early", "num_errors")


def stages_from(rows: Sequence[Mapping[str, Any]], groups: Groups, about: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The stages that ``Stage.to_dict`` described, ``about`` being the cascade's own entries."""
    fitted = count("num_examples", about["num_examples"], "how many examples it was fitted on")
    samples, name = natural_number("samples", about["samples"]), str(about["likelihood"])
    stages = tuple(
        Stage(
            str(row["name"]),
            count("macs", row["macs"], "the multiply-adds of a stage"),
            Calibration(row["temperature"], {}, fitted, name, samples, make_cut(groups, dict(row["cut"]))),
            _threshold(row["runs"], row["threshold"]),
            _milliseconds(row.get("ms")),
        )
        for row in rows
    )
    if not stages or not stages[-1].runs:
        raise ValueError("its last stage does not run")
    return stages


def points_from(rows: Sequence[Mapping[str, Any]], num_stages: int) -> tuple[Point, ...]:
    """The points that ``Point.to_dict`` described."""
    points = []
    for row in rows:
        thresholds = tuple(
            LEFT_OUT if value is None else finite_number("threshold", value) for value in row["thresholds"]
        )
        if len(thresholds) != num_stages - 1:
            raise ValueError(f"a point has {len(thresholds)} thresholds for {num_stages} stages")
        points.append(
            Point(
                finite_number("macs", row["macs"]),
                probability("accuracy", row["accuracy"]),
                thresholds,
                _milliseconds(row.get("ms")),
            )
        )
    return tuple(points)


def guarantee_from(saved: Mapping[str, Any] | None) -> Guarantee | None:
    """The guarantee of a cascade, if it has one."""
    if saved is None:
        return None
    most, delta = (inner_probability(name, saved[name]) for name in ("most", "delta"))
    return Guarantee(most, delta, *(natural_number(name, saved[name]) for name in _COUNTS))


def set_thresholds_from(saved: Mapping[str, float]) -> dict[float, float]:
    """The thresholds of conformal sets, by coverage."""
    pairs = ((inner_probability("coverage", float(coverage)), own) for coverage, own in saved.items())
    return {coverage: finite_number("threshold", own) for coverage, own in pairs}


def _milliseconds(saved: float | None) -> float | None:
    return None if saved is None else positive_number("ms", saved)


def _threshold(runs: object, saved: float | None) -> float:
    if not isinstance(runs, bool):
        raise TypeError(f"runs is {runs!r}")
    if not runs:
        return LEFT_OUT
    return ANSWERS_ALL if saved is None else finite_number("threshold", saved)
