"""A cascade of cuts: the narrowest answers first, and what it is unsure of goes on to the next."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from nestling.cascade.answers import CascadePrediction, CascadeScores
from nestling.cascade.comparison import Comparison, Point, compared
from nestling.cascade.guarantee import Guarantee
from nestling.cascade.options import ScoreName
from nestling.cascade.outcomes import ANSWERS_ALL
from nestling.cascade.saved import guarantee_from, points_from, set_thresholds_from, stages_from
from nestling.cascade.scoring import scored
from nestling.cascade.stages import Judged, Stage, check_single, judged, outcomes_by_score, outputs_at, predicted
from nestling.errors import ArgumentError, RunError
from nestling.prediction import (
    By,
    ClassPrediction,
    Likelihood,
    check_repeatable,
    conformal_thresholds,
    coverages_of,
    likelihood_for,
    pairs,
    predict,
)
from nestling.running import Nested, Read, batch_of, examples_of, latencies_ms, read_by
from nestling.seeding import Purpose, mixed
from nestling.storage import packed, read_json, weights_digest, write_json

CASCADE_FILE = "cascade.json"
_ADVICE = "Fit it again: nestling cascade RUN."
_Step = tuple[int, ClassPrediction, Tensor, Tensor]
"""The number of a stage, its prediction, the examples that it was run on, and which of these it is sure of."""


@dataclass(frozen=True, eq=False)
class Cascade:
    """The stages of a cascade, the narrowest first, with the thresholds that were fitted for a ``goal``.

    ``nl.cascade`` makes one. It predicts, scores itself, compares itself with its cuts, and is saved as JSON.

    Attributes:
        nested: The network whose cuts are the stages.
        stages: The cuts with their thresholds, those that do not run included.
        score: The uncertainty that is compared with the thresholds, such as ``"entropy"``.
        goal: The text of the goal, such as ``"loss=0.002"``.
        likelihood: What the outputs mean.
        samples: Weight samples to average over in each stage.
        by: How weights are averaged over, as in ``nl.predict``.
        num_examples: How many examples chose the thresholds.
        points: The best averages of cost and accuracy that other thresholds have on these examples.
        guarantee: What was proven of early answers; None unless the goal asks for it.
        set_thresholds: By coverage, the largest nonconformity within a conformal set of the cascade's answers.

    Examples:
        >>> casc.score in ("entropy", "mutual_information", "max_probability")
        True
        >>> casc.save("runs/digits")
        >>> again = nl.Cascade.load("runs/digits", nested)
        >>> again.thresholds == casc.thresholds
        True
    """

    nested: Nested = field(repr=False)
    stages: tuple[Stage, ...]
    score: str
    goal: str
    likelihood: Likelihood = field(repr=False)
    samples: int
    by: By
    num_examples: int
    points: tuple[Point, ...] = field(repr=False)
    guarantee: Guarantee | None = None
    set_thresholds: Mapping[float, float] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        last = "" if self.stages[-1].threshold == ANSWERS_ALL else " -> don't know"
        route = " -> ".join(stage.name for stage in self.running)
        return f"Cascade({route}{last}; by {self.score}, for {self.goal})"

    @property
    def running(self) -> tuple[Stage, ...]:
        """The stages that are run."""
        return tuple(stage for stage in self.stages if stage.runs)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The threshold of each stage: -inf if it is left out, inf if it answers all that reaches it."""
        return tuple(stage.threshold for stage in self.stages)

    def predict(self, x: Any, *, batch_size: int | None = None, seed: int | None = None) -> CascadePrediction:  # noqa: ANN401
        """Predict for a batch: each stage runs on those examples alone of which the stages before were too unsure.

        Args:
            x: A batch of inputs (B, ...), as in ``nl.predict``.
            batch_size: How many examples run at once; None for all that reach a stage.
            seed: Makes weight samples reproducible.

        Returns:
            The prediction of each example by the stage at which it ended, with the number of that stage, whether it was
            answered, and its cost.

        Examples:
            >>> p = casc.predict(images, seed=0)
            >>> tuple(p.labels.shape), p.mean_macs > 0
            ((100,), True)
        """
        steps = list(self._steps(x, batch_size, seed))
        first = steps[0][1]
        total = len(first.log_probs)
        log_probs, entropies = first.log_probs.clone(), first.expected_entropy.clone()
        stages, macs = torch.zeros(total, dtype=torch.int64), torch.zeros(total, dtype=torch.float64)
        answered = torch.zeros(total, dtype=torch.bool)
        for number, prediction, rows, is_sure in steps:
            log_probs[rows], entropies[rows] = prediction.log_probs, prediction.expected_entropy
            stages[rows], answered[rows] = number, is_sure
            macs[rows] += self.stages[number].macs
        return CascadePrediction(
            log_probs, entropies, stages=stages, answered=answered, macs=macs, thresholds=self.set_thresholds
        )

    def _steps(self, x: Any, batch_size: int | None, seed: int | None) -> Iterator[_Step]:  # noqa: ANN401
        """Run the stages until no example is left that a stage is unsure of."""
        rows: Tensor | None = None
        part, total = x, 0
        for number, stage in enumerate(self.stages):
            if not stage.runs:
                continue
            prediction = self._at(stage, part, batch_size, seed)
            if rows is None:
                total = len(prediction.log_probs)
                rows = torch.arange(total)
            is_sure = (prediction.unfamiliarity()[self.score] <= stage.threshold).cpu()
            yield number, prediction, rows, is_sure
            rows = rows[~is_sure]
            if not len(rows):
                return
            part = examples_of(x, rows, total)

    def _at(self, stage: Stage, x: Any, batch_size: int | None, seed: int | None) -> ClassPrediction:  # noqa: ANN401
        """The prediction of a stage for the examples that reach it."""
        prediction = predict(
            self.nested,
            x,
            cut=stage.cut,
            samples=self.samples,
            likelihood=self.likelihood,
            calibration=stage.calibration,
            batch_size=batch_size,
            seed=seed,
            by=self.by,
        )
        assert isinstance(prediction, ClassPrediction)
        return prediction

    def evaluate(
        self, batches: Iterable[Any], *, latency: bool = False, seed: int | None = 0, batch: Read | None = None
    ) -> CascadeScores:
        """Score the cascade on batches of (inputs, targets), each stage on the examples that reach it.

        Args:
            batches: Pairs of inputs (B, ...) and labels (B,).
            latency: Measure the milliseconds of each stage for one example in torch, on this device; otherwise they are
                those that the cascade was fitted with, if it was.
            seed: Makes weight samples reproducible, as in ``nl.evaluate``.
            batch: A function that makes pairs of the batches, if they are none.

        Returns:
            The scores of all answers, the average cost, and what each stage did.

        Examples:
            >>> scores = casc.evaluate(loader)
            >>> 0 <= scores.scores.accuracy <= 1, scores.stages[-1].name
            (True, '1')
        """
        times = self.latencies() if latency else [stage.ms for stage in self.stages]
        return scored(self.stages, self.predict, read_by(batches, batch), times, seed)

    def calibrated(
        self,
        batches: Iterable[Any],
        *,
        coverage: float | Sequence[float] = 0.9,
        seed: int = 0,
        batch: Read | None = None,
    ) -> "Cascade":
        """The same cascade with conformal sets of its answers fitted on new examples.

        On examples that had no part in ``nl.cascade`` the sets have their coverage to the letter.

        Args:
            batches: Pairs of inputs (B, ...) and labels (B,).
            coverage: One probability below 1, or several.
            seed: Makes weight samples reproducible.
            batch: A function that makes pairs of the batches, if they are none.

        Returns:
            A new cascade; this one stays as it is.

        Raises:
            ArgumentError: If there are too few examples for a coverage.

        Examples:
            >>> calibrated = casc.calibrated(data.batches("test", 100), coverage=(0.9, 0.95))
            >>> tuple(calibrated.predict(images).sets(0.95).shape)
            (100, 10)
        """
        coverages, found = coverages_of(coverage), []
        for number, (x, target) in enumerate(pairs(read_by(batches, batch))):
            check_single(target)
            found.append(self.predict(x, seed=mixed(Purpose.PREDICTION, seed, number)).nonconformity(target).cpu())
        return replace(self, set_thresholds=conformal_thresholds(torch.cat(found), coverages))

    def latencies(self, threads: int | None = None) -> list[float]:
        """The milliseconds of one pass of the plain network of each stage, for one example, measured in turns.

        Args:
            threads: CPU threads; None for torch's setting.

        Returns:
            A median per stage, the narrowest first.
        """
        networks = [self.nested.extracted(stage.cut) for stage in self.stages]
        return latencies_ms(networks, batch_of(*self.nested.example, 1), threads)

    def compare(self, batches: Iterable[Any], *, seed: int | None = 0, batch: Read | None = None) -> Comparison:
        """Run every stage on all of the batches: the cascade beside each cut by itself.

        Args:
            batches: Pairs of inputs (B, ...) and labels (B,), read once per stage.
            seed: Makes weight samples reproducible.
            batch: A function that makes pairs of the batches, if they are none.

        Returns:
            Accuracy and average cost of the cascade, of other thresholds, and of each cut alone.

        Examples:
            >>> comparison = casc.compare(loader)
            >>> len(comparison.alone), 0 <= comparison.chosen.accuracy <= 1
            (3, True)
        """
        loader = read_by(batches, batch)
        check_repeatable(loader, "batches", len(self.stages))
        options: dict[str, Any] = {"samples": self.samples, "likelihood": self.likelihood, "seed": seed, "by": self.by}
        judgements, widest = list[Judged](), None
        for stage in reversed(self.stages):
            outputs, targets = outputs_at(self.nested, stage.cut, loader, **options)
            prediction = predicted(self.likelihood, outputs, stage.calibration.temperature)
            widest = widest or prediction
            judgements.insert(0, judged(prediction, targets, widest))
        outcomes = outcomes_by_score(judgements, [stage.macs for stage in self.stages])[self.score]
        return compared(outcomes, np.array(self.thresholds), self.points, self.stages)

    def to_dict(self) -> dict[str, Any]:
        """The cascade as plain values for JSON, without the network."""
        guarantee = None if self.guarantee is None else vars(self.guarantee)
        about: dict[str, Any] = {
            "score": self.score,
            "goal": self.goal,
            "guarantee": guarantee,
            "likelihood": self.likelihood.name,
        }
        about |= {"samples": self.samples, "by": self.by, "num_examples": self.num_examples}
        about["set_thresholds"] = {str(coverage): threshold for coverage, threshold in self.set_thresholds.items()}
        rows = {"stages": [stage.to_dict() for stage in self.stages]}
        return {**about, **rows, "points": [point.to_dict() for point in self.points]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], nested: Nested) -> "Cascade":
        """The cascade of a network that ``to_dict`` described.

        Args:
            values: Plain values, such as a file has them.
            nested: The network that it was fitted to.

        Returns:
            The cascade, which predicts as the one before.

        Raises:
            ArgumentError: If the values are not those of a cascade of this network.
        """
        try:
            stages = stages_from(values["stages"], nested.groups, values)
            score, by = str(values["score"]), values["by"]
            if score not in get_args(ScoreName)[1:] or by not in get_args(By):
                raise ValueError(f"it has no score {score!r}, or is not by {by!r}")
            return cls(
                nested,
                stages,
                score,
                str(values["goal"]),
                likelihood_for(nested, str(values["likelihood"])),
                values["samples"],
                by,
                values["num_examples"],
                points_from(values["points"], len(stages)),
                guarantee_from(values["guarantee"]),
                set_thresholds_from(values.get("set_thresholds", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # those of arguments are ValueErrors
            given, needed = f"values that do not fit ({error})", "what Cascade.to_dict gives, for the same network"
            raise ArgumentError("cascade", given, needed, "Fit it again.") from None

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the cascade to ``cascade.json``, with a checksum of the weights that it is for.

        Args:
            folder: Where to write, such as the folder of the run.

        Raises:
            RunError: If nothing can be written there.
        """
        content = {"weights": weights_digest(packed(self.nested)[0]), **self.to_dict()}
        write_json(Path(folder) / CASCADE_FILE, content)

    @classmethod
    def load(cls, folder: str | PathLike[str], nested: Nested) -> "Cascade":
        """Read the cascade that ``save`` wrote.

        Args:
            folder: Where ``cascade.json`` is.
            nested: The network whose weights it was fitted to.

        Returns:
            The cascade.

        Raises:
            RunError: If the file is missing or damaged, or of other weights.
        """
        path = Path(folder) / CASCADE_FILE
        saved = read_json(path)
        if saved.get("weights") != weights_digest(packed(nested)[0]):
            raise RunError(path, "is of other weights than the network has", _ADVICE)
        try:
            return cls.from_dict(saved, nested)
        except ArgumentError as error:
            raise RunError(path, f"is not a cascade ({error.given})", _ADVICE) from None
