"""A calibration: the temperature and the conformal thresholds of a network at one cut, fitted after training."""

from collections.abc import Mapping
from dataclasses import dataclass

from nestling.arguments import count, finite_number, inner_probability, positive_number
from nestling.errors import ArgumentError, DtypeError
from nestling.reading import Cut


@dataclass(frozen=True)
class Calibration:
    """What ``calibrate`` fits, and ``predict`` and ``evaluate`` apply: a temperature and conformal thresholds.

    Attributes:
        temperature: Divides the logits of each weight sample, or multiplies the variance of the noise of numbers. A
            network that is too sure of itself has one above 1.
        thresholds: For each coverage the largest nonconformity within a conformal set.
        num_examples: How many examples it was fitted on.
        likelihood: The name of the likelihood at the fit; another one is refused.
        samples: Weight samples at the fit.
        cut: The cut at the fit, which must be that of the prediction; None for a plain network.

    Raises:
        ArgumentError: If a number is not positive and finite, or a coverage is not between 0 and 1.

    Examples:
        >>> calibration = nl.calibrate(nested, loader, cut=0.5, coverage=(0.8, 0.9))
        >>> sorted(calibration.thresholds), calibration.num_examples
        ([0.8, 0.9], 144)
        >>> nl.Calibration.from_dict(calibration.to_dict()) == calibration
        True
    """

    temperature: float
    thresholds: Mapping[float, float]
    num_examples: int
    likelihood: str
    samples: int
    cut: Cut | None

    def __post_init__(self) -> None:
        positive_number("temperature", self.temperature)
        for coverage, threshold in self.thresholds.items():
            inner_probability("coverage", coverage)
            finite_number("threshold", threshold)
        count("num_examples", self.num_examples, "how many examples the calibration was fitted on")

    def check(self, likelihood: str, cut: Cut | None) -> None:
        """Raise if the calibration is of another likelihood or cut than a prediction.

        Args:
            likelihood: The name of the prediction's likelihood.
            cut: The prediction's cut; None for a plain network.

        Raises:
            ArgumentError: If one of them differs.
        """
        if likelihood != self.likelihood:
            given = f"one that was fitted with the {self.likelihood} likelihood"
            raise ArgumentError("calibration", given, f"one for {likelihood}", "Fit it with the same likelihood.")
        if self.cut is not None and cut is not None and self.cut != cut:
            given, needed = f"one that was fitted at {self.cut.as_dict()}", f"one for the cut {cut.as_dict()}"
            raise ArgumentError("calibration", given, needed, "Call calibrate(..., cut=...) for this cut too.")

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "temperature": self.temperature,
            "thresholds": {str(coverage): threshold for coverage, threshold in self.thresholds.items()},
            "num_examples": self.num_examples,
            "likelihood": self.likelihood,
            "samples": self.samples,
            "cut": None if self.cut is None else self.cut.as_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Calibration":
        """The calibration that ``to_dict`` gave.

        Args:
            values: Plain values, such as a file has them.

        Returns:
            The calibration.

        Raises:
            ArgumentError: If an entry is missing, unknown or of another type.
        """
        types = {
            "temperature": (int, float),
            "thresholds": (Mapping,),
            "num_examples": (int,),
            "likelihood": (str,),
            "samples": (int,),
            "cut": (Mapping, type(None)),
        }
        if not isinstance(values, Mapping) or set(values) != set(types):
            given = f"the keys {sorted(map(str, values))}" if isinstance(values, Mapping) else type(values).__name__
            raise ArgumentError("calibration", given, f"a dictionary of {', '.join(types)}", _ADVICE)
        for key, allowed in types.items():
            if not isinstance(values[key], allowed) or isinstance(values[key], bool):
                needed = " or ".join(allowed_type.__name__ for allowed_type in allowed)
                raise DtypeError(f"calibration's {key}", repr(values[key]), needed, _ADVICE)
        return _from_values(**values)  # type: ignore[arg-type]


def _from_values(
    *,
    temperature: float,
    thresholds: Mapping[str, float],
    num_examples: int,
    likelihood: str,
    samples: int,
    cut: Mapping[str, int] | None,
) -> Calibration:
    try:
        by_coverage = {float(coverage): threshold for coverage, threshold in thresholds.items()}
    except ValueError:
        given = ", ".join(thresholds)
        raise DtypeError("calibration's thresholds", given, "coverages such as 0.9", _ADVICE) from None
    if not all(isinstance(width, int) and not isinstance(width, bool) for width in (cut or {}).values()):
        raise DtypeError("calibration's cut", "widths of other kinds", "whole numbers of blocks", _ADVICE)
    fitted_cut = None if cut is None else Cut(tuple(cut.items()))
    return Calibration(temperature, by_coverage, num_examples, likelihood, samples, fitted_cut)


_ADVICE = "Read back what Calibration.to_dict wrote; the file may be damaged or of another version."
