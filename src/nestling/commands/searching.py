"""``search`` and ``extract``: from a run to its curve, and to a smaller network."""

from collections.abc import Sequence
from pathlib import Path

from nestling.commands.building import torch_device
from nestling.commands.chosen_cut import choose, recalibrated, words
from nestling.commands.options import Device
from nestling.commands.own_data import data_of
from nestling.data import Data
from nestling.delivery import PROGRAM_FILE, Packing, save_small
from nestling.errors import ArgumentError
from nestling.prediction import likelihood_for
from nestling.processes import connected
from nestling.reading import Cut
from nestling.report import curve_table, draw_front
from nestling.running import Nested
from nestling.running import cost as run_cost
from nestling.running import extract as run_extract
from nestling.running.layers import plain_name
from nestling.search import CURVE_FILE, CostName, Searching
from nestling.search import search as run_search
from nestling.storage import FolderLock, remove_parts
from nestling.training import Run, Stopping, keep_statistics, make_feed, open_run


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
    example = f"nestling extract {words(folder, trust)} --under {budget}={value}"
    return f"{curve_table(curve)}\n\n{folder / CURVE_FILE} has the curve. Next: {example}"


def extract(
    folder: Path,
    *,
    cut: float | None = None,
    under: Sequence[str] = (),
    all_bits: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Extract the network of a cut, or the best of the curve under a budget, from a run to a separate folder."""
    run = open_run(folder, trust=trust)
    chosen = choose(run, cut, under, trust=trust)
    nested, wanted, row = run.nested, chosen.cut, chosen.row
    packing = _packing(run, wanted, all_bits=all_bits, trust=trust)
    small = run_extract(nested, wanted)
    small_cost = run_cost(nested, wanted, latency=True)
    target = folder / f"small-{small_cost.params}" if out is None else out
    likelihood = likelihood_for(nested, run.likelihood).settled()
    about = {"cut": wanted.as_dict(), "cost": vars(small_cost), "budget": chosen.budget, "score": row and row.score}
    about |= {"likelihood": likelihood.to_dict()}
    save_small(small, nested.example, target, about, packing)
    is_share = row is not None and likelihood.targets == "classes" and 0 <= row.score <= 1
    quality = f", {row.score:.2%} on the validation data" if row is not None and is_share else ""
    sizes = f"{small_cost.params:,} parameters, {small_cost.macs:,} MACs, {small_cost.bytes:,} bytes"
    sizes += f", {small_cost.latency_ms:.3g} ms here"
    return f"{target} has a network of {sizes}{quality}. Run it: torch.export.load('{target}/{PROGRAM_FILE}').module()"


def _packing(run: Run, cut: Cut, *, all_bits: bool, trust: bool) -> Packing:
    """How the weights of a cut are stored; norms are recalibrated for the cut and, with all bits, for fewer pairs."""
    nested = run.nested
    levels = {plain_name(name): weight_levels for name, weight_levels in nested.levels_at(cut).items()}
    if all_bits and not levels:
        raise ArgumentError("all_bits", "a run without nested bits", "one with them", "Train with --kinds bit.")
    most = max((weight_levels.num_pairs for weight_levels in levels.values()), default=1)
    smaller = {number: _with_pairs(nested, cut, number) for number in range(1, most if all_bits else 1)}
    recalibrated(run, [cut, *smaller.values()], trust=trust)
    fewer = {number: nested.statistics.get(reduced, {}) for number, reduced in smaller.items()}
    return Packing(levels, fewer if all_bits else None)


def _with_pairs(nested: Nested, cut: Cut, most: int) -> Cut:
    """A cut with at most ``most`` pairs of levels per weight."""
    groups = nested.groups
    return Cut(tuple((name, min(width, most) if groups[name].kind == "bit" else width) for name, width in cut.widths))
