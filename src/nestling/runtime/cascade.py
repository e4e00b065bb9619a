"""A cascade in a file of several widths: the narrowest answers first, and passes on what it is unsure of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.errors import ArgumentError, RunError
from nestling.runtime.answers import Answers
from nestling.runtime.network import BATCH, Network, open, opened
from nestling.runtime.record import CASCADE_SCORES


def open_cascade(path: str | PathLike[str], *, threads: int | None = None) -> "Cascade":
    """Open the cascade of a file of several widths that ``export(..., cascade=)`` wrote.

    Each of its widths is fixed while the file is open, so a stage is as fast as a file of that width alone.

    Args:
        path: The file.
        threads: CPU threads; None leaves the choice to the runtime.

    Returns:
        The cascade, ready to predict.

    Raises:
        RunError: If the file is not there, is damaged, or has no cascade.

    Examples:
        >>> opened = nl.runtime.open_cascade("cascade.onnx")
        >>> answers = opened.predict(data.test.inputs[:3].numpy())
        >>> len(answers.names), set(answers.widths) <= {"0.5", "1"}
        (3, True)
    """

    def last(about: Mapping[str, Any]) -> Mapping[str, int]:
        if not about.get("cascade"):
            raise RunError(Path(path), "has no cascade", "Export it with nl.export(..., cascade=).")
        cut: dict[str, int] = about["cascade"]["stages"][-1]["cut"]
        return cut

    widest = opened(path, last, threads)
    narrower = [open(path, stage["cut"], threads=threads) for stage in widest.about["cascade"]["stages"][:-1]]
    return Cascade((*narrower, widest))


@dataclass(frozen=True, eq=False)
class Cascade:
    """An open cascade of a file, which predicts with numpy and the file's runtime alone.

    Attributes:
        networks: The file at the width of each stage, the narrowest first.

    Examples:
        >>> opened = nl.runtime.open_cascade("cascade.onnx")
        >>> [stage["name"] for stage in opened.stages], opened.about["cascade"]["goal"]
        (['0.5', '1'], 'macs=0.8x')
    """

    networks: tuple[Network, ...] = field(repr=False)

    @property
    def about(self) -> dict[str, Any]:
        """The record that the file was written with; its entry ``cascade`` has the goal, score and stages."""
        return self.networks[-1].about

    @property
    def stages(self) -> Sequence[Mapping[str, Any]]:
        """Of each stage its name, cut, multiply-adds, temperature and threshold (None if it answers all)."""
        stages: list[dict[str, Any]] = self.about["cascade"]["stages"]
        return stages

    def __repr__(self) -> str:
        route = " -> ".join(str(stage["name"]) for stage in self.stages)
        route += "" if self.stages[-1]["threshold"] is None else " -> don't know"
        return f"Cascade({route}; by {self.about['cascade']['score']}, for {self.about['cascade']['goal']})"

    def predict(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> "CascadeAnswers":
        """The answers for a batch: each stage runs on those examples of which the stages before were too unsure.

        Args:
            inputs: as for ``Network.predict``.

        Returns:
            The answer to each example by the stage at which it ended, with the width, and what it cost.

        Raises:
            ArgumentError: if an input is missing, or its shape or dtype does not fit.
        """
        arrays = self.networks[0].fitted(inputs)
        score = self.about["cascade"]["score"]
        rows, batched = np.arange(_batch(arrays, self.about)), set(_batched(self.about))
        ends, answered = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        outputs: dict[str, np.ndarray] = {}
        for number, (network, stage) in enumerate(zip(self.networks, self.stages, strict=True)):
            part = {name: array[rows] if name in batched else array for name, array in arrays.items()}
            logits = network.predict(part)["logits"]
            log_probs = class_log_probs(logits, stage["temperature"])
            found = {"probs": np.exp(log_probs), "logits": logits}
            threshold = np.inf if stage["threshold"] is None else stage["threshold"]
            is_sure = how_unsure(log_probs, score) <= threshold
            shapes = {name: (len(ends), *array.shape[1:]) for name, array in found.items()}
            outputs = outputs or {name: np.zeros(shapes[name], array.dtype) for name, array in found.items()}
            for name, array in found.items():
                outputs[name][rows] = array
            ends[rows], answered[rows] = number, is_sure
            rows = rows[~is_sure]
            if not len(rows):
                break
        about = {**self.about, "thresholds": self.about["cascade"]["set_thresholds"]}
        return CascadeAnswers(outputs, about, ends, answered)


@dataclass(frozen=True, eq=False, repr=False)
class CascadeAnswers(Answers):
    """The answers of a cascade, with the stage at which each ended.

    Attributes:
        stages: The number of the stage (B,) at which each example ended.
        answered: False (B,) where the last stage is too unsure.

    Examples:
        >>> answers = nl.runtime.open_cascade("cascade.onnx").predict(data.test.inputs[:3].numpy())
        >>> answers.stages.shape, answers.macs.shape, answers.mean_macs > 0
        ((3,), (3,), True)
    """

    stages: np.ndarray
    answered: np.ndarray

    @property
    def widths(self) -> list[str]:
        """The name of the cut that each answer is from."""
        names = [str(stage["name"]) for stage in self.about["cascade"]["stages"]]
        return [names[stage] for stage in self.stages.tolist()]

    @property
    def macs(self) -> np.ndarray:
        """The multiply-adds (B,) of all stages that each example went through."""
        macs: np.ndarray = np.cumsum([stage["macs"] for stage in self.about["cascade"]["stages"]])[self.stages]
        return macs

    @property
    def mean_macs(self) -> float:
        """The average multiply-adds of an example."""
        return float(self.macs.mean())

    def _columns(self) -> dict[str, list[str]]:
        widths = [width if known else "don't know" for width, known in zip(self.widths, self.answered, strict=True)]
        return {**super()._columns(), "width": widths}


def _batched(about: Mapping[str, Any]) -> list[str]:
    """The inputs that have an example per row."""
    return [port["name"] for port in about["inputs"] if port["shape"] and port["shape"][0] == BATCH]


def _batch(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> int:
    return len(arrays[_batched(about)[0]])


def class_log_probs(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Log-probabilities (B, C) in double precision; a single logit (B, 1) is that of class 1 against class 0."""
    if logits.ndim != 2:
        given, needed = f"logits of shape {logits.shape}", "one answer per example"
        raise ArgumentError("file", given, needed, "A cascade is for one class per example.")
    wide = logits.astype(np.float64) / temperature
    wide = np.concatenate((np.zeros_like(wide), wide), 1) if wide.shape[1] == 1 else wide
    shifted = wide - wide.max(1, keepdims=True)
    log_probs: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_probs


def how_unsure(log_probs: np.ndarray, score: str) -> np.ndarray:
    """The score (B,) of log-probabilities (B, C), ``"entropy"`` or ``"max_probability"``, high if unsure."""
    return _SCORES[score](log_probs)


def _entropy(log_probs: np.ndarray) -> np.ndarray:
    entropy: np.ndarray = -(np.exp(log_probs) * log_probs).sum(1)
    return entropy


def _of_the_top(log_probs: np.ndarray) -> np.ndarray:
    top: np.ndarray = -log_probs.max(1)
    return top


_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = dict(zip(CASCADE_SCORES, (_entropy, _of_the_top), strict=True))
"""How unsure log-probabilities (B, C) are, by the name of the score; with mean weights these are all there are."""
