"""The cut of a run that the command line asks for: a fraction, or the best of the run's curve under budgets."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nestling.budgets import read_budgets
from nestling.commands.own_data import data_of
from nestling.errors import ArgumentError, RunError
from nestling.reading import Cut, make_cut
from nestling.running import norms_with_statistics
from nestling.search import CURVE_FILE, Curve, Row
from nestling.storage import packed, weights_digest
from nestling.training import Run, make_feed, make_statistics


@dataclass(frozen=True)
class Chosen:
    """A cut, with the ``budget`` it was chosen for and its ``row`` of the curve, if it was chosen by one."""

    cut: Cut
    row: Row | None
    budget: dict[str, str]


def choose(run: Run, cut: float | None, under: Sequence[str], *, trust: bool) -> Chosen:
    """The cut of a fraction, or the best one of the run's curve under budgets; one of both must be given."""
    if (cut is None) == (not under):
        raise ArgumentError("cut", "both or neither", "a cut, or budgets", "Pass --cut 0.5 or --under macs=1e6.")
    if cut is not None:
        return Chosen(make_cut(run.nested.groups, cut), None, {})
    assert run.folder is not None
    budget = {name: str(limit) for name, limit in read_budgets(under).items()}
    row = curve_of(run, words(run.folder, trust)).row_under(**budget)
    return Chosen(make_cut(run.nested.groups, row.cut), row, budget)


def recalibrated(run: Run, cuts: Sequence[Cut], *, trust: bool) -> None:
    """Give the norms of a run their statistics at those of the cuts that have none, from the data of the run."""
    missing = [cut for cut in cuts if cut not in run.nested.statistics]
    if norms_with_statistics(run.nested) and missing:
        make_statistics(run, missing, make_feed(data_of(run, trust=trust), run.recipe))


def words(folder: Path, trust: bool) -> str:
    """The words that name a run in a command to be copied."""
    return shlex.quote(str(folder)) + (" --trust" if trust else "")


def curve_of(run: Run, named: str) -> Curve:
    """The curve of a run, checked to be of its weights; ``named`` are the words for the run on the command line."""
    assert run.folder is not None
    path, advice = run.folder / CURVE_FILE, f"Search first: nestling search {named} --cost macs"
    if not path.exists():
        raise RunError(run.folder, "has no curve yet", advice)
    curve = Curve.read(path)
    if curve.weights not in (None, weights_digest(packed(run.nested)[0])):
        raise RunError(path, "is of other weights, since the run was trained further", advice)
    return curve
