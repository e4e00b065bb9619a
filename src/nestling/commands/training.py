"""``train`` and ``evaluate``, and the data of a run."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling import data as sets
from nestling.arguments import count
from nestling.commands.building import build_network, load_weights, not_taken, option, torch_device
from nestling.commands.options import BATCH, Device
from nestling.commands.own_data import data_of, out_of_distribution, say_skipped
from nestling.data import AugmentChoice, Data
from nestling.errors import RangeError
from nestling.network import Nesting, nest
from nestling.prediction import LikelihoodName
from nestling.processes import connected
from nestling.reading import UNIT_KINDS, cut_names, smallest_cut
from nestling.report import score_widths, widths_table
from nestling.running import Nested, cost
from nestling.storage import packed, tensors_digest, weights_digest, write_json
from nestling.tables import thousands
from nestling.training import SCORES_FILE, Recipe, Run, open_run, outputs_for, prepare_cuts
from nestling.training import train as run_training

LITTLE_CUT = 0.9
"""If the smallest cut has more than this share of the multiply-adds, ``train`` says that little can be cut."""


def train(
    source: str,
    model: str,
    out: Path,
    nesting: Nesting,
    recipe: Recipe,
    *,
    model_options: Sequence[str] = (),
    hold_out: Sequence[int] = (),
    augment: AugmentChoice = "auto",
    resize: Sequence[int] = (),
    pretrained: Path | None = None,
    likelihood: LikelihoodName | None = None,
    device: Device = "auto",
) -> str:
    """Load, build, nest, train; validation scores are in the log, so the returned text only names the folder."""

    def prepare() -> tuple[Data, Nested, nn.Module, list[str], str | None]:
        loaded = sets.load(
            source,
            hold_out=hold_out,
            seed=recipe.seed,
            splits=("train", "validation"),
            augment=augment,
            resize=resize or None,
        )
        num_outputs = outputs_for(loaded, likelihood)
        network = build_network(model, loaded, num_outputs, recipe.seed, dict(map(option, model_options)))
        skipped = [] if pretrained is None else load_weights(network, pretrained, num_outputs)
        options = nesting.options(pretrained=pretrained is not None)
        if pretrained is not None and pretrained.is_dir() and nesting.sort == "auto":
            options["sort"] = "none"  # the units of a run are in order
        nested = nest(network, torch.zeros(2, *loaded.input_shape), **options)
        starts_from = None if pretrained is None else _checksum(pretrained, network)
        return loaded, nested.to(torch_device(device)), network.to(torch_device(device)), skipped, starts_from

    with connected() as processes:
        loaded, nested, network, skipped, starts_from = processes.agree(prepare)
        if processes.is_first:
            say_skipped(loaded)
            if pretrained is not None and skipped:
                print(not_taken(pretrained, skipped), flush=True)
            print(nested.groups, flush=True)
        if not nested.groups.free:
            kinds = ", ".join(UNIT_KINDS if nesting.kinds is None else nesting.kinds)
            given, needed = f"{model} with kinds {kinds}", "a network with something to cut"
            raise RangeError("model", given, needed, "The table above says what is frozen, and why.")
        if processes.is_first:
            print(_smallest(nested), flush=True)
        teaches = pretrained is not None and not skipped and recipe.objective != "elbo"
        teaches = teaches and loaded.task != "regression" and likelihood in (None, "categorical")
        tuned = recipe.but(optimiser="sgd") if pretrained is not None and recipe.optimiser == "auto" else recipe
        teacher = network if teaches else None
        run_training(nested, loaded, tuned, out=out, likelihood=likelihood, starts_from=starts_from, teacher=teacher)
    trust = " --trust" if ":" in model else ""
    return f"{out} is complete. Next: nestling evaluate {out}{trust}"


def evaluate(
    folder: Path,
    cuts: Sequence[float],
    *,
    ood: str | None = None,
    limit: int | None = None,
    samples: int = 6,
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Score a run at cuts and write the figures; new cuts are recalibrated and calibrated first."""

    def prepare() -> tuple[Run, Data, Any, list[float]]:
        run = open_run(folder, trust=trust)
        run.nested.to(torch_device(device))
        if limit is not None:
            count("limit", limit, "how many examples of a set to score")
        loaded = data_of(run, trust=trust)
        wanted = sorted(set(cuts or run.recipe.cuts))
        cut_names(run.nested.groups, wanted)  # an error for a fraction that is none, before anything is made
        return run, loaded, out_of_distribution(loaded, ood, limit), wanted

    with connected() as processes:
        run, loaded, ood_batches, wanted = processes.agree(prepare)
        run = prepare_cuts(run, wanted, loaded, processes)
        rows = score_widths(
            run.nested,
            loaded.batches("test", BATCH, limit=limit),
            wanted,
            ood=ood_batches,
            samples=samples,
            likelihood=run.likelihood,
            calibrations=run.calibrations if samples else (),
            spread=processes.count > 1,
            quiet=not processes.is_first,
        )
        if processes.is_first:
            figures = {
                "weights": weights_digest(packed(run.nested)[0]),
                "data": loaded.name,
                "ood": ood,
                "limit": limit,
                "samples": samples,
                "rows": [row.to_dict() for row in rows],
            }
            write_json(folder / SCORES_FILE, figures)
    return widths_table(rows)


def _checksum(pretrained: Path, network: nn.Module) -> str:
    """A checksum of a file of weights, or of those taken from a run, whose file changes with the cuts it knows."""
    if pretrained.is_dir():
        return tensors_digest(network.state_dict().values())
    return hashlib.sha256(pretrained.read_bytes()).hexdigest()


def _smallest(nested: Nested) -> str:
    """One line with the cost of the smallest cut, absolute and as a share of the whole network."""
    least, whole = cost(nested, smallest_cut(nested.groups)), cost(nested, 1.0)
    macs, params, size = (
        small / large if large else 1.0
        for small, large in ((least.macs, whole.macs), (least.params, whole.params), (least.bytes, whole.bytes))
    )
    line = (
        f"smallest cut: {thousands(least.macs)} multiply-adds ({macs:.1%} of the whole), "
        f"{thousands(least.params)} parameters ({params:.1%}), {thousands(least.bytes)} bytes ({size:.1%})"
    )
    with_bits = any(group.quantises for group in nested.groups.free)  # they save bytes, not multiply-adds
    if with_bits or macs <= LITTLE_CUT:
        return line
    return f"{line}. Little can be cut: the table says why."
