"""What a search shows while it goes on: the best network so far at some shares of the cost."""

from nestling.prediction import Likelihood
from nestling.reading import Cut
from nestling.search.quality import Quality
from nestling.search.strategies import Space
from nestling.tables import text_table
from nestling.training import Progress

SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
"""The shares of the whole network's cost for which the best network is shown."""
_LINES = 10
"""The number of lines that a search of the longest length says."""


class Standing:
    """Notes scored cuts; shows the best at each share of the cost, and says so for each tenth of ``most`` cuts."""

    def __init__(self, space: Space, cost: str, likelihood: Likelihood, most: int, progress: Progress) -> None:
        self._space, self._cost, self._progress, self._most = space, cost, progress, most
        self._of_classes = likelihood.targets == "classes"
        self._budgets = [share * space.cost(space.full) for share in SHARES]
        self._best: list[tuple[Quality, float] | None] = [None] * len(SHARES)
        self._num_noted = 0

    def note(self, cut: Cut, quality: Quality) -> None:
        """Note one more scored cut."""
        cost = self._space.cost(cut)
        before = list(self._best)
        for number, budget in enumerate(self._budgets):
            best = self._best[number]
            if cost <= budget and (best is None or quality > best[0]):
                self._best[number] = quality, cost
        self._num_noted += 1
        self._progress.step()
        if self._best != before:
            self._progress.below(self._table())
        if self._num_noted * _LINES // self._most > (self._num_noted - 1) * _LINES // self._most:
            self._progress.say(self._line())

    def _table(self) -> str:
        rows = [
            [f"{share:.0%} of {self._cost}", self._written(best[0]), f"{best[1]:,.4g}"]
            for share, best in zip(SHARES, self._best, strict=True)
            if best is not None
        ]
        return text_table(["budget", "best so far", "it costs"], rows, names=1)

    def _line(self) -> str:
        shares = (
            f"{share:.0%}: {self._written(best[0])}"
            for share, best in zip(SHARES, self._best, strict=True)
            if best is not None
        )
        return f"search  {self._num_noted:,} of at most {self._most:,} cuts  best by {self._cost}  {'  '.join(shares)}"

    def _written(self, quality: Quality) -> str:
        is_accuracy = self._of_classes and 0 <= quality.score <= 1
        return f"{quality.score:.2%}" if is_accuracy else f"{quality.score:.4g}"
