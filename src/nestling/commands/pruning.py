"""``prune``: from a data set and a model to a smaller network in files."""

from collections.abc import Sequence
from pathlib import Path

import torch

from nestling import data as sets
from nestling.commands.building import built, chosen, load_weights, not_taken, option
from nestling.commands.options import BATCH, Device
from nestling.delivery import PROGRAM_FILE, save_small
from nestling.prediction import evaluate
from nestling.pruning import PRETRAINING, Pruning, save_pruned, to_dense, without_widths
from nestling.pruning import prune as run_pruning
from nestling.storage import make_folder
from nestling.training import Recipe, make_feed

PRUNED_FILE = "pruned.safetensors"


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
    device: Device = "auto",
) -> str:
    """Train with Bayesian dropout, take out what is left, score it beside the whole, and write it."""
    loaded = sets.load(source, seed=recipe.seed)
    network = built(model, loaded, recipe.seed, dict(map(option, model_options)))
    if pretrained is not None and (left := load_weights(network, pretrained, loaded.num_outputs)):
        print(not_taken(pretrained, left), flush=True)
    place = make_folder(out)
    example = torch.zeros(2, *loaded.input_shape, device=chosen(device))
    found = run_pruning(
        network.to(chosen(device)),
        example,
        loaded,
        **vars(options),
        recipe=recipe,
        pretrain=PRETRAINING.but(epochs=pretrain_epochs, seed=recipe.seed) if pretrain_epochs else False,
        out=place,
    )
    likelihood = make_feed(loaded, recipe).likelihood or "categorical"
    whole = without_widths(found.network, example)
    scores = evaluate(whole, loaded.batches("test", BATCH), samples=0, likelihood=likelihood)
    save_small(
        to_dense(found.network).cpu(), ((example.cpu(),), {}), place, found.to_dict() | {"test": scores.to_dict()}
    )
    size = save_pruned(found.network, place / PRUNED_FILE)
    quality = f"{scores.quality:.2%} of the test data right" if scores.quality > 0 else f"test NLL {scores.nll:.4g}"
    return (
        f"{found}\n\n{quality}. {place / PRUNED_FILE} has the weights in {size:,} bytes. "
        f"Run it: torch.export.load('{place}/{PROGRAM_FILE}').module()"
    )
