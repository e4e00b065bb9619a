"""The record of a delivered network: what it takes and gives, which cut it is, and how it was calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nestling.data import Data
from nestling.delivery.formats import Port
from nestling.prediction import Calibration, Likelihood, likelihood_from
from nestling.reading import Cut, cut_names, full_cut
from nestling.running import Cost, Nested
from nestling.runtime import FORMAT
from nestling.storage import tensors_digest
from nestling.version import __version__

NORMALISED_BY = ("input_shape", "mean", "std")
"""What must be known of data for a file to normalise its inputs."""


@dataclass(frozen=True)
class Known:
    """What is known of a network besides its weights.

    ``data`` is the record of its data as a run has it: ``input_shape``, ``mean``, ``std``, ``as_bytes``, ``classes``.
    ``run`` is the name that the run has in its files.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    likelihood: Likelihood | None = None
    calibration: Calibration | None = None
    run: str | None = None

    @property
    def normalises(self) -> bool:
        """Whether enough is known of the inputs to normalise them."""
        return all(self.data.get(key) is not None for key in NORMALISED_BY)

    @property
    def temperature(self) -> float:
        """What the logits are divided by, or the noise's variance is multiplied with."""
        return 1.0 if self.calibration is None else self.calibration.temperature


def data_record(data: Data | Mapping[str, Any] | None) -> dict[str, Any]:
    """What a file must know of its data: how inputs are normalised, whether they are bytes, and classes.

    Args:
        data: The data, its record as a run has it, or None where nothing is known, as for loaders of yours.

    Returns:
        The record, with values that JSON can hold; empty for None.

    Examples:
        >>> record = nl.delivery.data_record(data)
        >>> record["input_shape"], record["as_bytes"], record["classes"][:2]
        ([1, 8, 8], True, ['0', '1'])
    """
    if data is None:
        return {}
    if isinstance(data, Data):
        first = next(iter(data.splits.values()))
        return {
            "name": data.name,
            "task": data.task,
            "as_bytes": first.has_bytes,
            "input_shape": list(data.input_shape),
            "classes": list(data.classes),
            "mean": list(data.mean),
            "std": list(data.std),
        }
    return dict(data)


def described(
    network: nn.Module,
    known: Known,
    cost: Cost,
    nested: Nested | None = None,
    cut: Cut | None = None,
    asked: float | Mapping[str, int] | Cut | None = None,
) -> dict[str, Any]:
    """What is known of a plain network, as JSON has it; ``cut`` is the cut of ``nested`` that was ``asked`` for.

    Examples:
        >>> from nestling.delivery.about import Known, described
        >>> half = curve.under(macs="0.5x")
        >>> described(nl.extract(nested, half), Known(run.data), nl.cost(nested, half), nested, half)["classes"]
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']
    """
    likelihood = known.likelihood
    about: dict[str, Any] = {"format": FORMAT, "nestling": __version__, "torch": torch.__version__}
    about |= {"data": {key: known.data.get(key) for key in ("name", "task", "as_bytes", *NORMALISED_BY)}}
    about |= {"classes": list(known.data.get("classes") or ())}
    about |= {"likelihood": None if likelihood is None else likelihood.settled().to_dict()}
    about |= described_calibration(known.calibration)
    about |= {"name": None, "cut": None, "kept": None}
    if nested is not None and cut is not None:
        name = cut_names(nested.groups, [asked or cut])[cut]
        about |= {"name": name, "cut": cut.as_dict(), "kept": cut.share_of(full_cut(nested.groups))}
    about |= {"cost": {name: value for name, value in vars(cost).items() if value is not None}}
    return about | {"run": known.run, "weights": tensors_digest(network.state_dict().values())}


def described_calibration(calibration: Calibration | None) -> dict[str, Any]:
    """How the probabilities of a cut were calibrated, as JSON has it; temperature 1 is not at all."""
    if calibration is None:
        return {"temperature": 1.0, "thresholds": {}, "calibrated_on": None}
    return {
        "temperature": calibration.temperature,
        "thresholds": {str(coverage): value for coverage, value in calibration.thresholds.items()},
        "calibrated_on": {"num_examples": calibration.num_examples, "samples": calibration.samples},
    }


def described_inputs(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """Each input with its name, dtype, and shape, in which open sizes have names."""
    inputs = []
    for port in ports:
        shape = [port.open_axes.get(axis, size) for axis, size in enumerate(port.example.shape)]
        inputs.append({"name": port.name, "dtype": str(port.example.dtype).removeprefix("torch."), "shape": shape})
    return inputs


def known_of(saved: Mapping[str, Any]) -> Known:
    """What the record of a small network's folder says that is known of it."""
    likelihood, calibration = saved.get("likelihood"), saved.get("calibration")
    return Known(
        data={**(saved.get("data") or {}), "classes": saved.get("classes")},
        likelihood=None if likelihood is None else likelihood_from(likelihood),
        calibration=None if calibration is None else Calibration.from_dict(calibration),
        run=saved.get("run"),
    )
