"""``prune``: from a data set and a model to a smaller network in files."""

from collections.abc import Sequence
from pathlib import Path

import torch

from nestling import data as sets
from nestling.commands.building import build_network, load_weights, not_taken, option, torch_device
from nestling.commands.options import BATCH, Device
from nestling.commands.own_data import say_skipped
from nestling.data import AugmentChoice
from nestling.delivery import PROGRAM_FILE, write_program
from nestling.prediction import ClassScores, LikelihoodName, evaluate
from nestling.pruning import PRETRAINING, PRUNED_FILE, Delivered, Pruning, save_pruned, without_widths
from nestling.pruning import prune as run_pruning
from nestling.storage import make_folder
from nestling.training import Recipe, outputs_for


def prune(
    source: str,
    model: str,
    out: Path,
    options: Pruning,
    recipe: Recipe,
    *,
    pretrain_epochs: int = 0,
    pretrained: Path | None = None,
    model_options: Sequence[str] = (),
    augment: AugmentChoice = "auto",
    resize: Sequence[int] = (),
    likelihood: LikelihoodName | None = None,
    device: Device = "auto",
) -> str:
    """Train with Bayesian dropout, extract the rest, score it, and write it."""
    loaded = sets.load(source, seed=recipe.seed, augment=augment, resize=resize or None)
    say_skipped(loaded)
    num_outputs = outputs_for(loaded, likelihood)
    network = build_network(model, loaded, num_outputs, recipe.seed, dict(map(option, model_options)))
    if pretrained is not None and (skipped := load_weights(network, pretrained, num_outputs)):
        print(not_taken(pretrained, skipped), flush=True)
    folder = make_folder(out)
    example = torch.zeros(2, *loaded.input_shape, device=torch_device(device))
    pruned = run_pruning(
        network.to(torch_device(device)),
        example,
        loaded,
        **vars(options),
        recipe=recipe,
        pretrain=PRETRAINING.but(epochs=pretrain_epochs, seed=recipe.seed) if pretrain_epochs else False,
        out=folder,
        likelihood=likelihood,
    )
    nested = without_widths(pruned.network, example)
    scores = evaluate(nested, loaded.batches("test", BATCH), samples=0, likelihood=pruned.likelihood)
    size = save_pruned(pruned.network, folder / PRUNED_FILE)
    program = pruned.program if example.device.type == "cpu" else Delivered(pruned.network.cpu(), example.cpu()).program
    write_program(program, folder, pruned.to_dict() | {"test": scores.to_dict()})
    if program is None:
        how = f"torch can't export it: read {folder / PRUNED_FILE} with nl.load_pruned"
    else:
        how = f"torch.export.load('{folder}/{PROGRAM_FILE}').module()"
    name = "accuracy" if isinstance(scores, ClassScores) and scores.iou is None else "nll"
    low, high = scores.bounds[name]
    quality = f"test {name} {getattr(scores, name):.4g} (95 % interval {low:.4g} to {high:.4g})"
    return (
        f"{pruned}\n\n{quality}. Run it: {how}. "
        f"{folder / PRUNED_FILE} has the weights alone, in {size:,} bytes, for nl.load_pruned."
    )
