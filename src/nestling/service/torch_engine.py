"""An engine that runs a nested network in torch, for networks and places that have no exported file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from nestling.data import normalised
from nestling.prediction import Calibration, ClassPrediction, Likelihood, predict
from nestling.reading import Cut, cut_names, full_cut, make_cut
from nestling.running import Nested
from nestling.runtime import BATCH
from nestling.service.engine import Engine
from nestling.service.width import Arrays, Calibrated, Width


class TorchEngine(Engine):
    """A nested network at some of its cuts, with its mean weights.

    Args:
        nested: the network.
        cuts: the cuts to serve.
        data: the record of its data in a run: ``input_shape``, ``mean``, ``std``, ``as_bytes``, ``classes``.
        likelihood: what its outputs mean; None for what it was trained with.
        calibrations: the calibrations of some of the cuts.
        cascade: the record of a cascade, as a file has it.

    Examples:
        >>> from nestling.service import TorchEngine
        >>> engine = TorchEngine(nested, [0.25, 1.0], run.data, calibrations=run.calibrations)
        >>> engine.answer(1, engine.zeros(2))["probs"].shape
        (2, 10)
    """

    platform = "torch"

    def __init__(
        self,
        nested: Nested,
        cuts: Sequence[float | Mapping[str, int] | Cut],
        data: Mapping[str, Any],
        *,
        likelihood: str | Likelihood | None = None,
        calibrations: Sequence[Calibration] = (),
        cascade: Mapping[str, Any] | None = None,
    ) -> None:
        self._nested, self._data, self._likelihood = nested, data, likelihood
        names, whole = cut_names(nested.groups, list(cuts)), full_cut(nested.groups)
        self._cuts = sorted({make_cut(nested.groups, cut) for cut in cuts}, key=lambda cut: cut.share_of(whole))
        self.widths = tuple(
            Width(names[cut], cut.share_of(whole), _calibrated(calibrations, cut), cut.as_dict()) for cut in self._cuts
        )
        shape, dtype = list(data["input_shape"]), "uint8" if data.get("as_bytes") else "float32"
        name = "images" if len(shape) == 3 else "inputs"
        port: dict[str, Any] = {"name": name, "dtype": dtype, "shape": [BATCH, *shape], "layout": "nchw"}
        if data.get("as_bytes"):
            port["scale"] = 255
        self.about = {"inputs": [port], "classes": list(data.get("classes") or ()), "data": dict(data)}
        self.about |= {"cascade": cascade}

    def run(self, width: int, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name at the width with this number."""
        (array,) = inputs.values()
        x = normalised(torch.from_numpy(array), self._data["mean"], self._data["std"])
        found = predict(self._nested, x, cut=self._cuts[width], samples=0, likelihood=self._likelihood)
        if isinstance(found, ClassPrediction):
            return {"probs": found.probs.numpy(), "logits": found.log_probs.numpy()}
        return {name: getattr(found, name).numpy() for name in ("mean", "std")}


def _calibrated(calibrations: Sequence[Calibration], cut: Cut) -> Calibrated:
    found = (Calibrated(own.temperature, own.thresholds) for own in calibrations if own.cut == cut)
    return next(found, Calibrated())
