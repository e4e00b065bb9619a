"""What each command does, from its arguments to the text it prints."""

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from nestling import data as sets
from nestling import models
from nestling.data import Data
from nestling.data.inputs import read_inputs
from nestling.delivery import Packing, save_small
from nestling.delivery.small import PROGRAM_FILE
from nestling.errors import ArgumentError, NestlingError, RangeError, RunError
from nestling.network import Bits, Cut, Nested, nest, recalibrate
from nestling.network import cost as run_cost
from nestling.network import extract as run_extract
from nestling.network.cut import make_cut
from nestling.network.group import Kind
from nestling.network.layers import plain_name
from nestling.prediction import ClassPrediction
from nestling.prediction import predict as run_prediction
from nestling.processes import connected, local_rank
from nestling.report import answers, curve_table, draw_front, score_widths, text_table, widths_table, write_csv
from nestling.search import Curve
from nestling.search import search as run_search
from nestling.search.costs import CostName
from nestling.search.strategies import StrategyName
from nestling.training import Recipe, Run, open_run
from nestling.training import train as run_training
from nestling.training.feeds import make_feed, training_fingerprint
from nestling.training.files import write_json
from nestling.training.folder import RECIPE_FILE
from nestling.training.loop import has_norms
from nestling.training.train import prepared

_BATCH = 500
CURVE_FILE = "curve.json"
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Nesting:
    """The options of ``nest`` that a command line can give."""

    order: Literal["downhill", "uniform", "geometric", "full"] = "downhill"
    """How widths are drawn; downhill is learned."""
    weights: Literal["gaussian", "plain"] = "gaussian"
    """gaussian learns the uncertainty of each weight."""
    sampling: Literal["local", "shared", "each"] = "local"
    """How weights are drawn; shared or each for segmentation."""
    num_blocks: int = 32
    """Into how many blocks each group is divided."""
    num_always: int = 2
    """How many of them are never cut."""
    kinds: tuple[Kind, ...] = ("channel", "neuron")
    """What may be cut."""
    where: Literal["inner", "all"] = "inner"
    """Cut only what stays inside a block, or residual streams too."""
    layers: Literal["network", "stage"] = "network"
    """Drop layers from the end of the network, or of each stage."""
    bits: Bits = field(default_factory=Bits)
    """How weights are quantised, where kinds has bit."""
    private: tuple[float, ...] = ()
    """Fractions at which batch norms have weights of their own, as in slimmable networks."""
    exclude: tuple[str, ...] = ()
    """Modules or tensors to leave alone."""
    rescale: bool = False
    """Scale each block by its keep probability at test time, as FN3 does."""

    def options(self) -> dict[str, Any]:
        """The options as ``nest`` takes them."""
        bits = self.bits if "bit" in self.kinds else None
        return vars(self) | {"weights": None if self.weights == "plain" else self.weights, "bits": bits}


def train(
    source: str,
    model: str,
    out: Path,
    nesting: "Nesting",
    recipe: Recipe,
    *,
    model_options: Sequence[str] = (),
    hold_out: Sequence[int] = (),
    pretrained: Path | None = None,
    device: Device = "auto",
) -> str:
    """Load, build, nest, train; the table of validation is in the log, so the text says where things are."""

    def prepare() -> tuple[Data, Nested]:
        loaded = sets.load(source, hold_out=hold_out, seed=recipe.seed, splits=("train", "validation"))
        network = _built(model, loaded, recipe.seed, dict(map(_option, model_options)))
        if pretrained is not None:
            load_weights(network, pretrained)
        return loaded, nest(network, torch.zeros(2, *loaded.input_shape), **nesting.options()).to(chosen(device))

    with connected() as processes:
        loaded, nested = processes.agree(prepare)
        if processes.is_first:
            print(nested.groups, flush=True)
        if not nested.groups.free:
            given, needed = f"{model} with kinds {', '.join(nesting.kinds)}", "a network with something to cut"
            raise RangeError("model", given, needed, "The table above says what is frozen, and why.")
        starts_from = None if pretrained is None else hashlib.sha256(pretrained.read_bytes()).hexdigest()
        run_training(nested, loaded, recipe, out=out, starts_from=starts_from)
    trust = " --trust" if ":" in model else ""
    return f"{out} is complete. Next: nestling evaluate {out}{trust}"


def evaluate(
    folder: Path,
    cuts: Sequence[float],
    *,
    ood: str | None = None,
    samples: int = 6,
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Score a run at cuts, which are recalibrated and calibrated first where they are new, and note the figures."""

    def prepare() -> tuple[Run, Data, Any, list[float]]:
        run = open_run(folder, trust=trust)
        run.nested.to(chosen(device))
        loaded = _data_of(run)
        by_cut = {make_cut(run.nested.groups, cut): cut for cut in sorted(set(cuts or run.recipe.cuts), reverse=True)}
        return run, loaded, _strange(loaded, ood), sorted(by_cut.values())

    with connected() as processes:
        run, loaded, strange, wanted = processes.agree(prepare)
        run = prepared(run, wanted, loaded, processes)
        rows = score_widths(
            run.nested,
            loaded.batches("test", _BATCH),
            wanted,
            ood=strange,
            samples=samples,
            likelihood=run.likelihood,
            calibrations=[own if samples else None for own in map(run.calibration, wanted)],
            spread=processes.count > 1,
        )
        if processes.is_first:
            figures = {"data": loaded.name, "samples": samples, "rows": [row.to_dict() for row in rows]}
            write_json(folder / "scores.json", figures)
    return widths_table(rows)


def search(
    folder: Path,
    cost: CostName,
    *,
    strategy: StrategyName = "dynamic",
    num_points: int = 24,
    seed: int = 0,
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Find the curve on the validation data, write it and its picture to the run's folder, and give it as a table."""

    def prepare() -> tuple[Run, Data]:
        run = open_run(folder, trust=trust)
        run.nested.to(chosen(device))
        return run, _data_of(run)

    with connected() as processes:
        run, loaded = processes.agree(prepare)
        feed = make_feed(loaded, run.recipe)
        curve = run_search(
            run.nested,
            feed.validation,
            cost,
            strategy=strategy,
            likelihood=run.likelihood,
            recalibration=feed.recalibration,
            num_points=num_points,
            seed=seed,
            out=folder,
            spread=processes.count > 1,
            quiet=not processes.is_first,
        )
        if processes.is_first:
            curve.save(folder / CURVE_FILE)
            draw_front(folder / CURVE_FILE.replace(".json", ".png"), curve)
    budget = "latency_ms" if cost == "latency" else cost
    middle = curve.rows[len(curve.rows) // 2].cost
    example = f"nestling extract {folder} --under {budget}={f'{middle:.3g}' if cost == 'latency' else round(middle)}"
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
    """Take the network of a cut, or the best of the curve under a budget, out of a run, into a folder of its own."""
    if (cut is None) == (not under):
        raise ArgumentError("extract", "both or neither", "a cut, or budgets", "Pass --cut 0.5 or --under macs=1e6.")
    budget = dict(map(_budget, under))
    run = open_run(folder, trust=trust)
    nested = run.nested
    row = _curve_of(folder).row_under(**budget) if cut is None else None
    wanted = make_cut(nested.groups, row.cut if row is not None else cut or 0.0)
    packing = _packing(run, wanted, all_bits=all_bits)
    small = run_extract(nested, wanted)
    found = run_cost(nested, wanted, latency=True)
    place = folder / f"small-{found.params}" if out is None else out
    about = {"cut": wanted.as_dict(), "cost": vars(found), "budget": budget, "score": row and row.score}
    save_small(small, nested.example, place, about, packing)
    quality = f", {row.score:.2%} on the validation data" if row is not None and 0 <= row.score <= 1 else ""
    sizes = f"{found.params:,} parameters, {found.macs:,} MACs, {found.bytes:,} bytes, {found.latency_ms:.3g} ms here"
    return f"{place} has a network of {sizes}{quality}. Run it: torch.export.load('{place}/{PROGRAM_FILE}').module()"


def predict(
    folder: Path,
    inputs: Path,
    cut: float,
    samples: int,
    coverage: float,
    *,
    resize: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Predict at a cut, with the calibration that was fitted there."""
    run = open_run(folder, trust=trust)
    about = run.data
    if any(about.get(key) is None for key in ("input_shape", "mean", "std", "classes")):
        raise RunError(folder, "was trained on loaders of yours, whose inputs no file describes", "Use nl.predict.")
    normalising = {"shape": about["input_shape"], "mean": about["mean"], "std": about["std"]}
    names, x = read_inputs(inputs, **normalising, as_bytes=bool(about.get("as_bytes")), resize=resize)
    if run.calibration(cut) is None:
        run = prepared(run, [cut], _data_of(run))
    calibration = run.calibration(cut)
    assert calibration is not None
    if calibration.thresholds and coverage not in calibration.thresholds:
        known = ", ".join(f"{own:g}" for own in calibration.thresholds)
        raise RangeError("coverage", coverage, f"one of {known}", "The run was calibrated for these.")
    found = run_prediction(
        run.nested,
        x,
        cut=cut,
        samples=samples,
        likelihood=run.likelihood,
        calibration=calibration,
        batch_size=_BATCH,
        seed=0,
    )
    if isinstance(found, ClassPrediction) and found.probs.shape[1] != len(about["classes"]):
        wrong = f"names {len(about['classes'])} classes for a network of {found.probs.shape[1]}"
        raise RunError(folder / RECIPE_FILE, wrong, "Restore it from a copy, or train again.")
    header, rows = answers(found, names, tuple(about["classes"]), coverage)
    if out is not None:
        write_csv(out, header, rows)
    return text_table(header, rows)


def data() -> str:
    """The data sets by name, what of each is here, and how to get the rest."""
    rows = []
    for own in sets.found():
        here = ", ".join(own.splits) or "-"
        count = f"{own.num_examples:,}" if own.num_examples else "-"
        where = str(own.where or "comes with nestling")
        if not own.splits:
            where = "fetched when it is first used" if own.can_fetch else "to be made: see docs/data.md"
        rows.append([own.name, own.task, here, count, where])
    folder = f"Data is looked for in {sets.data_root()} ($NESTLING_DATA), and fetched into it where there is a network."
    return text_table(["name", "task", "splits", "examples", "where"], rows) + f"\n\n{folder}"


def chosen(device: Device) -> torch.device:
    """The device that is meant; auto is a GPU where there is one, of several processes each its own."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "cuda", "cpu where torch finds no GPU", "Check torch.cuda.is_available().")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank())


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights of a safetensors file that has them under the network's own names."""
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        advice = "Save them with safetensors.torch.save_file(module.state_dict(), path); pickles are not read."
        raise RunError(path, f"can't be read as safetensors ({error})", advice) from None
    own = network.state_dict()
    for name in {**own, **tensors}:
        here, there = own.get(name), tensors.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = " and ".join("nothing" if t is None else str(tuple(t.shape)) for t in (there, here))
            raise RunError(path, f"does not fit the network at {name}: {shapes}", "Check the model and its options.")
    network.load_state_dict(tensors)


def _built(model: str, loaded: Data, seed: int, given_options: Mapping[str, Any]) -> nn.Module:
    """A network that fits the data; what goes wrong in code of the user's is said in one line."""
    try:
        options = models.options_for(model, loaded.input_shape, loaded.num_outputs) | dict(given_options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return models.build(model, **options)
    except NestlingError:
        raise
    except Exception as error:
        given = f"{model}, which raises {type(error).__name__}: {error}"
        raise ArgumentError("model", given, "code that builds a network", "Call it in Python for the lines.") from error


def _data_of(run: Run) -> Data:
    """The data that a run was trained on."""
    loaded_with = run.data.get("loaded_with")
    if loaded_with is None:
        raise RunError(run.folder, "was trained on data of yours that no file describes", "Use nl.evaluate.")
    known = {"source", "validation", "hold_out", "seed"}  # a folder does not say where data is fetched to, or unchecked
    if not isinstance(loaded_with, dict) or loaded_with.keys() != known or not isinstance(loaded_with["source"], str):
        raise RunError(run.folder, "does not say what data it was trained on", "Restore recipe.json from a copy.")
    loaded = sets.load(**loaded_with)
    if training_fingerprint(loaded) != run.data.get("fingerprint"):
        raise RunError(run.folder, f"was trained on other data than {loaded.name} is now", "Restore the data.")
    return loaded


def _strange(loaded: Data, ood: str | None) -> Any:  # noqa: ANN401
    """Batches of what the network should not know: a data set, or the classes that were held out."""
    if ood is None:
        return None if loaded.held_out is None else loaded.batches("held_out", _BATCH)
    other = sets.load(ood, splits=("test",)).normalised_like(loaded)
    if other.input_shape != loaded.input_shape:
        given, needed = f"{ood} with inputs {other.input_shape}", f"data with inputs {loaded.input_shape}"
        raise RangeError("ood", given, needed, "Choose a set of the same kind.")
    return other.batches("test", _BATCH)


def _packing(run: Run, cut: Cut, *, all_bits: bool) -> Packing:
    """How the weights of a cut are stored; its norms, and with all bits those of each smaller number, are collected."""
    nested = run.nested
    levels = {plain_name(name): own for name, own in nested.levels_at(cut).items()}
    if all_bits and not levels:
        raise ArgumentError("all_bits", "a run without nested bits", "one with them", "Train with --kinds bit.")
    most = max((own.num_pairs for own in levels.values()), default=1)
    smaller = {number: _with_pairs(nested, cut, number) for number in range(1, most if all_bits else 1)}
    missing = [own for own in (cut, *smaller.values()) if own not in nested.statistics]
    if has_norms(nested) and missing:
        feed = make_feed(_data_of(run), run.recipe)
        for own in missing:
            recalibrate(nested, feed.recalibration, own)
    fewer = {number: nested.statistics.get(own, {}) for number, own in smaller.items()}
    return Packing(levels, fewer if all_bits else None)


def _with_pairs(nested: Nested, cut: Cut, most: int) -> Cut:
    """A cut with no more than so many pairs of levels in any weight."""
    groups = nested.groups
    return Cut(tuple((name, min(width, most) if groups[name].kind == "bit" else width) for name, width in cut.widths))


def _curve_of(folder: Path) -> Curve:
    if not (folder / CURVE_FILE).exists():
        raise RunError(folder, "has no curve yet", f"Search first: nestling search {folder} --cost macs")
    return Curve.read(folder / CURVE_FILE)


def _option(text: str) -> tuple[str, Any]:
    """An option of a model as it is written on the command line, name=value."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        needed = "an option such as width=0.5 or hidden=[64,32]"
        raise ArgumentError("model-options", repr(text), needed, "Write name=value without spaces.") from None


def _budget(text: str) -> tuple[str, float]:
    """A budget as it is written on the command line, name=value."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        needed = "a budget such as latency_ms=4 or bytes=200000"
        raise ArgumentError("under", repr(text), needed, "Write the number without its unit.") from None
