"""``search`` and ``extract``: from a run to its curve, and to a smaller network."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nestling.budgets import Limit, read_budgets
from nestling.commands.building import torch_device
from nestling.commands.options import Device
from nestling.commands.own_data import data_of
from nestling.data import Data
from nestling.delivery import Packing, small_record, write_small
from nestling.errors import ArgumentError, RunError
from nestling.prediction import likelihood_for
from nestling.processes import connected
from nestling.reading import Cut, make_cut
from nestling.report import curve_table, draw_front
from nestling.running import Nested, batch_of, latencies_ms, norms_with_statistics, program_of
from nestling.running import cost as run_cost
from nestling.running import extract as run_extract
from nestling.running.layers import plain_name
from nestling.search import CostName, Curve, Searching
from nestling.search import search as run_search
from nestling.storage import FolderLock, packed, plain_files, read_json, remove_parts, weights_digest
from nestling.training import (
    RECIPE_FILE,
    Run,
    Stopping,
    identity_of,
    keep_statistics,
    make_feed,
    make_statistics,
    open_run,
)

CURVE_FILE = "curve.json"


def search(
    folder: Path,
    cost: CostName,
    options: Searching = Searching(),  # noqa: B008 (frozen)
    *,
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Find the curve on the validation data, write it and its picture to the run's folder, and give it as a table.

    The run keeps the norms' statistics of the curve's networks, so that each is the same wherever it is used.
    """

    def prepare() -> tuple[Run, Data]:
        if processes.is_first:
            with FolderLock(folder):  # an error now if nothing can be written there, or a run is being trained
                remove_parts(folder)
        run = open_run(folder, trust=trust)
        run.nested.to(torch_device(device))
        return run, data_of(run, trust=trust)

    with connected() as processes, Stopping().watching():
        run, loaded = processes.agree(prepare)
        feed = make_feed(loaded, run.recipe)
        curve = run_search(
            run.nested,
            feed.validation,
            cost,
            **vars(options),
            likelihood=run.likelihood,
            recalibration=feed.recalibration,
            out=folder,
            spread=processes.count > 1,
            quiet=not processes.is_first,
        )
        if processes.is_first:
            keep_statistics(run, [row.cut for row in curve.rows])
            curve.save(folder / CURVE_FILE)
            draw_front(folder / CURVE_FILE.replace(".json", ".png"), curve)
    budget = "latency_ms" if cost == "latency" else cost
    middle = curve.rows[len(curve.rows) // 2].cost
    value = f"{middle:.3g}" if cost == "latency" else round(middle)
    example = f"nestling extract {_words(folder, trust)} --under {budget}={value}"
    return f"{curve_table(curve)}\n\n{folder / CURVE_FILE} has the curve. Next: {example}"


def extract(
    folder: Path,
    *,
    cut: float | None = None,
    under: Sequence[str] = (),
    all_bits: bool = False,
    program: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Extract the network of a cut, or the best of the curve under a budget, from a run to a separate folder.

    The latency that is said is that of the network as ``load_small`` gives it.
    """
    if (cut is None) == (not under):
        raise ArgumentError("extract", "both or neither", "a cut, or budgets", "Pass --cut 0.5 or --under macs=1e6.")
    limits = read_budgets(under)
    budget = {name: str(limit) for name, limit in limits.items()}
    run = open_run(folder, trust=trust)
    nested = run.nested
    curve = _curve_of(run, _words(folder, trust)) if cut is None else None
    row = None if curve is None else curve.row_under(**budget)
    wanted = make_cut(nested.groups, row.cut if row is not None else cut or 0.0)
    packing = _packing(run, wanted, all_bits=all_bits, trust=trust)
    small = run_extract(nested, wanted)
    files = plain_files(small, nested.example, packing)
    (milliseconds,) = latencies_ms([files.module], batch_of(*nested.example, 1))
    small_cost = replace(run_cost(nested, wanted), latency_ms=milliseconds)
    target = folder / f"small-{small_cost.params}" if out is None else out
    likelihood = likelihood_for(nested, run.likelihood).settled()
    about = {"cut": wanted.as_dict(), "cost": vars(small_cost), "budget": budget, "score": row and row.score}
    identity = identity_of(read_json(folder / RECIPE_FILE))
    about |= small_record(run.data, likelihood, run.calibration(wanted), identity)
    write_small(files, target, about, program=program_of(small, nested.example) if program else None)
    is_share = row is not None and likelihood.targets == "classes" and 0 <= row.score <= 1
    quality = f", {row.score:.2%} on the validation data" if row is not None and is_share else ""
    sizes = f"{small_cost.params:,} parameters, {small_cost.macs:,} MACs, {small_cost.bytes:,} bytes"
    sizes += f", {small_cost.latency_ms:.3g} ms here"
    beyond = "" if curve is None else _beyond(limits, curve, milliseconds)
    return f"{target} has a network of {sizes}{quality}.{beyond} Run it: nl.load_small('{target}')"


def _beyond(limits: Mapping[str, Limit], curve: Curve, milliseconds: float) -> str:
    """What to say if the delivered network takes longer than the budget that it was chosen for."""
    limit, whole = limits.get("latency_ms"), curve.rows[-1].latency_ms
    most = None if limit is None or whole is None else limit.most(whole)
    if most is None or milliseconds <= most:
        return ""
    return f" That is above the budget of {most:.3g} ms: it was faster when it was searched. Give a smaller budget."


def _packing(run: Run, cut: Cut, *, all_bits: bool, trust: bool) -> Packing:
    """How the weights of a cut are stored; norms are recalibrated for the cut and, with all bits, for fewer pairs."""
    nested = run.nested
    levels = {plain_name(name): weight_levels for name, weight_levels in nested.levels_at(cut).items()}
    if all_bits and not levels:
        raise ArgumentError("all_bits", "a run without nested bits", "one with them", "Train with --kinds bit.")
    most = max((weight_levels.num_pairs for weight_levels in levels.values()), default=1)
    smaller = {number: _with_pairs(nested, cut, number) for number in range(1, most if all_bits else 1)}
    missing = [needed for needed in (cut, *smaller.values()) if needed not in nested.statistics]
    if norms_with_statistics(nested) and missing:
        make_statistics(run, missing, make_feed(data_of(run, trust=trust), run.recipe))
    fewer = {number: nested.statistics.get(reduced, {}) for number, reduced in smaller.items()}
    return Packing(levels, fewer if all_bits else None)


def _with_pairs(nested: Nested, cut: Cut, most: int) -> Cut:
    """A cut with at most ``most`` pairs of levels per weight."""
    groups = nested.groups
    return Cut(tuple((name, min(width, most) if groups[name].kind == "bit" else width) for name, width in cut.widths))


def _curve_of(run: Run, words: str) -> Curve:
    """The curve of a run, checked to be of its weights; ``words`` name the run on the command line."""
    assert run.folder is not None
    path, advice = run.folder / CURVE_FILE, f"Search first: nestling search {words} --cost macs"
    if not path.exists():
        raise RunError(run.folder, "has no curve yet", advice)
    curve = Curve.read(path)
    if curve.weights not in (None, weights_digest(packed(run.nested)[0])):
        raise RunError(path, "is of other weights, since the run was trained further", advice)
    return curve


def _words(folder: Path, trust: bool) -> str:
    """The words that name a run in a command to be copied."""
    return shlex.quote(str(folder)) + (" --trust" if trust else "")
