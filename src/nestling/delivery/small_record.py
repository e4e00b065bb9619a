"""What a small network's folder says of it: what goes in, what comes out, and how it was calibrated."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.prediction import LIKELIHOODS, Calibration, Likelihood, likelihood_from
from nestling.training import describes_data
from nestling.version import __version__

NORMALISED_BY = ("as_bytes", "input_shape", "mean", "std")
"""What must be known to normalise inputs: bytes are scaled to [0, 1] first, then every input is (x - mean) / std."""

_ADVICE = "Extract the network again."


def small_record(
    data: Mapping[str, Any],
    likelihood: Likelihood | None = None,
    calibration: Calibration | None = None,
    run: str | None = None,
) -> dict[str, Any]:
    """What a small network's folder says of its data and answers, as JSON has it, with None for what is not known.

    Args:
        data: The record of its data: ``Run.data``, or what ``data_record`` gives.
        likelihood: What its outputs mean.
        calibration: The temperature and the conformal thresholds of its cut.
        run: The name that the run has in its files.

    Returns:
        The record, which ``save_small`` takes.

    Examples:
        >>> about = nl.delivery.small_record(run.data, nested.likelihood, run.calibration(0.5))
        >>> about["data"]["name"], len(about["classes"]), sorted(about)[:3]
        ('digits', 10, ['calibration', 'classes', 'data'])
    """
    record: dict[str, Any] = {"nestling": __version__, "torch": torch.__version__, "run": run}
    record["data"] = {key: data.get(key) for key in ("name", "task", *NORMALISED_BY)}
    record["classes"] = list(data.get("classes") or ())
    record["likelihood"] = None if likelihood is None else likelihood.settled().to_dict()
    record["calibration"] = None if calibration is None else calibration.to_dict()
    return record


def checked_record(path: Path, record: Mapping[str, Any]) -> None:
    """Refuse a record that ``predict`` could not go by."""
    try:
        data, likelihood, calibration = (record.get(key) for key in ("data", "likelihood", "calibration"))
        if data is not None:
            is_known = all(data[key] is not None for key in NORMALISED_BY)
            described = dict(data) | {"classes": record["classes"], "likelihood": "", "name": is_known or None}
            if not describes_data(described):
                raise ArgumentError("data", "a record that contradicts itself", "that of a run", _ADVICE)
        if likelihood is not None and likelihood["name"] in LIKELIHOODS:
            likelihood_from(likelihood)
        if calibration is not None:
            Calibration.from_dict(calibration)
    except Exception as error:  # a damaged record can cause any error
        problem = f"has a record that can't be used ({error if isinstance(error, NestlingError) else repr(error)})"
        raise RunError(path, problem, _ADVICE) from None
