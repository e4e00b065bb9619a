"""``report``: from the folders of runs and prunings to one page for a browser."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nestling.arguments import count
from nestling.cascade import CASCADE_FILE, Cascade
from nestling.commands.building import torch_device
from nestling.commands.chosen_cut import curve_of, words
from nestling.commands.options import Device
from nestling.commands.own_data import data_of, out_of_distribution
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.reading import Cut, make_cut
from nestling.report import (
    PAGE_FILE,
    OtherNetworks,
    PruningRecord,
    Report,
    Sample,
    comparison_page,
    is_pruning,
    pruning_page,
    report_of,
    run_page,
    sample_of,
    write_page,
)
from nestling.running import cost
from nestling.search import Curve
from nestling.storage import read_json
from nestling.training import SCORES_FILE, Run, open_run


@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line."""

    folders: Sequence[Path]
    ood: str | None
    limit: int
    samples: int
    trust: bool
    device: Device

    @property
    def command(self) -> str:
        """The command that makes the page again."""
        words = ["nestling report", *(shlex.quote(str(folder)) for folder in self.folders)]
        words += [] if self.ood is None else ["--ood", shlex.quote(self.ood)]
        words += [f"--limit {self.limit}", f"--samples {self.samples}", *(["--trust"] if self.trust else [])]
        return " ".join(words)


def report(
    folders: Sequence[Path],
    *,
    out: Path | None = None,
    ood: str | None = None,
    limit: int = 2000,
    samples: int = 6,
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Write the page of a run, of a pruning, or of several of them beside each other, and say where it is."""
    if not folders:
        raise ArgumentError("report", "no folder", "the folder of a run", "Write nestling report runs/mnist.")
    count("limit", limit, "how many examples of a set are measured")
    path = folders[0] / PAGE_FILE if out is None else out
    if out is not None and not path.parent.is_dir():
        raise RunError(path, "can't be written, since there is no such folder", "Check the paths.")
    asked = Asked(folders, ood, limit, samples, trust, device)
    prunings = [PruningRecord.read(folder) for folder in folders if is_pruning(folder)]
    runs = [folder for folder in folders if not is_pruning(folder)]
    if len(runs) == 1:
        text = run_page(_report(runs[0], asked, prunings))
    elif not runs and len(prunings) == 1:
        text = pruning_page(prunings[0], asked.command)
    else:
        text = comparison_page([_report(folder, asked, ()) for folder in runs], prunings, asked.command)
    size = write_page(path, text)
    return f"{path} is the page ({size / 1024:,.0f} kB). Open it in a browser."


def _report(folder: Path, asked: Asked, prunings: Sequence[PruningRecord]) -> Report:
    run = open_run(folder, trust=asked.trust)
    run.nested.to(torch_device(asked.device))
    named, notes = words(folder, asked.trust), list[str]()
    sample = _sample(run, asked, notes)
    return report_of(
        run,
        named,
        asked.command,
        sample,
        curve=_curve(run, named, notes),
        saved=_saved_scores(run, notes),
        others=_others(run, sample, prunings, notes),
        notes=notes,
        samples=asked.samples,
        quiet=False,
    )


def _sample(run: Run, asked: Asked, notes: list[str]) -> Sample | None:
    """The test data of a run; without it the page is made from its files, and a note says why."""
    try:
        loaded = data_of(run, trust=asked.trust)
        loaded.split("test")
    except NestlingError as error:
        notes.append(f"Nothing was measured for this page. {error}")
        return None
    foreign = out_of_distribution(loaded, asked.ood, asked.limit)
    return sample_of(loaded, foreign, asked.ood, asked.limit)


def _curve(run: Run, named: str, notes: list[str]) -> Curve | None:
    """The curve of a run; one that can't be used is noted, and so is that there is none."""
    try:
        return curve_of(run, named)
    except NestlingError as error:
        notes.append(f"The networks are those at the cuts of the recipe. {error}")
        return None


def _others(
    run: Run, sample: Sample | None, prunings: Sequence[PruningRecord], notes: list[str]
) -> list[OtherNetworks]:
    """What stands beside the networks of a run on its page: prunings, and the cascade of the run, if it has one."""
    series = [pruning.series for pruning in prunings]
    assert run.folder is not None
    if sample is None or not (run.folder / CASCADE_FILE).exists():
        return series
    try:
        scores = Cascade.load(run.folder, run.nested).evaluate(sample.known, latency=True)
    except NestlingError as error:
        notes.append(f"The cascade is not shown. {error}")
        return series
    if scores.scores is None:
        return series
    whole = cost(run.nested, 1.0)
    average = replace(whole, macs=round(scores.mean_macs), latency_ms=scores.mean_ms)
    return [*series, OtherNetworks("cascade, on average", [(average, scores.scores.to_dict())])]


def _saved_scores(run: Run, notes: list[str]) -> dict[Cut, Mapping[str, Any]]:
    """The scores that ``nestling evaluate`` wrote, by cut."""
    assert run.folder is not None
    path = run.folder / SCORES_FILE
    if not path.exists():
        return {}
    try:
        rows = read_json(path)["rows"]
        names = [str(row["cut"]).partition(",")[0] for row in rows]
        cuts = [make_cut(run.nested.groups, float(name)) for name in names]
        return {cut: dict(row["scores"]) for cut, row in zip(cuts, rows, strict=True)}
    except (NestlingError, KeyError, TypeError, ValueError, AttributeError) as error:
        notes.append(f"{path.name} could not be used: {error}")
        return {}
