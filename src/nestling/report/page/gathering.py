"""From a run, its files and its data to what its page says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nestling.data import Batches, Data
from nestling.reading import Cut
from nestling.report.page.measuring import Sample
from nestling.report.page.networks import networks_of
from nestling.report.page.run_page import Report
from nestling.report.page.tradeoff import OtherNetworks
from nestling.search import Curve
from nestling.storage import read_json, write_whole
from nestling.training import RECIPE_FILE, Run

PAGE_FILE = "report.html"
"""The page in the folder that it is about."""
BATCH = 500
"""How many examples are measured at a time, as in ``nestling evaluate``, whose scores a page repeats."""


def report_of(
    run: Run,
    words: str,
    made_here: str,
    sample: Sample | None,
    *,
    curve: Curve | None = None,
    saved: Mapping[Cut, Mapping[str, Any]] | None = None,
    others: Sequence[OtherNetworks] = (),
    notes: Sequence[str] = (),
    samples: int = 6,
    quiet: bool = True,
) -> Report:
    """The report of a run that is in a folder; its networks are measured on the sample, if there is one.

    ``saved`` has the scores that the run's files hold, for a page without data. ``words`` name the run in a command,
    ``made_here`` is the command that makes the page.
    """
    assert run.folder is not None
    choice = networks_of(run, curve, saved or {}, sample, samples=samples, quiet=quiet)
    record = read_json(run.folder / RECIPE_FILE)
    source = _source(sample, samples, has_curve=curve is not None)
    return Report(run, run.folder, record, words, choice, sample, source, made_here, tuple(notes), others)


def sample_of(loaded: Data, foreign: Batches | None, foreign_name: str | None, limit: int) -> Sample:
    """At most ``limit`` test examples of a data set, and other data beside them; by default the held-out classes."""
    known = loaded.batches("test", BATCH, limit=limit)
    classes = loaded.classes if loaded.task == "classification" else ()
    return Sample(known, loaded.name, classes, foreign, foreign_name or _held_out(loaded))


def write_page(path: Path, text: str) -> int:
    """Write a page whole or not at all, and return its size in bytes."""
    content = text.encode()
    write_whole(path, content)
    return len(content)


def _held_out(loaded: Data) -> str:
    labels = (loaded.loaded_with or {}).get("hold_out") or ()
    named = ", ".join(map(str, labels))
    return f"held-out classes ({named})" if named else "held-out classes"


def _source(sample: Sample | None, samples: int, *, has_curve: bool) -> str:
    """A sentence that says what the scores of a page were measured on."""
    if sample is not None:
        known = f"{sample.known.dataset_size:,} test examples of {sample.name}"
        other = "" if sample.foreign is None else f" and {sample.foreign.dataset_size:,} of {sample.foreign_name}"
        return f"Measured on {known}{other} when this page was made, with {samples} weight samples."
    if has_curve:
        return "Scores are those of the search, on its validation data, with mean weights."
    return "Scores are those in the files of the run."
