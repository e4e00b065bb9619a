"""The demonstration: digits in clutter, two classes held out, one nested network beside plain ones of every size."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling import data, models
from nestling.data import Data
from nestling.network import nest
from nestling.prediction import ClassScores, evaluate
from nestling.report import (
    PAGE_FILE,
    OtherNetworks,
    Series,
    draw_curves,
    report_of,
    run_page,
    sample_of,
    text_table,
    write_page,
)
from nestling.running import Cost, Nested, cost, extract
from nestling.storage import make_folder
from nestling.tables import thousands
from nestling.training import Progress, Recipe, Run, train

NETWORK, NETWORK_WIDTH = "vgg11", 0.125
"""The network whose widths are compared: VGG11 with an eighth of its channels."""
NUM_BLOCKS = 8
NUM_ALWAYS = 2
HELD_OUT = (8, 9)
WIDTHS = (0.25, 0.5, 0.75, 1.0)
BATCH = 500
MOST_MEASURED = 2000
"""The page measures at most so many images of each kind."""
RECIPE = Recipe(epochs=14, batch_size=64, cuts=WIDTHS)
ALONE_EPOCHS = 10
"""Epochs of each network that is trained alone: all four take about three quarters of the nested network's time."""


@dataclass(frozen=True)
class Figures:
    """The scores of a method at each width."""

    method: str
    scores: Sequence[ClassScores]


def demo(out: Path, *, seed: int = 0) -> str:
    """Train the three methods, save the nested network and the picture under ``out``, and return the text to print."""
    digits = data.load("cluttered_digits", hold_out=HELD_OUT, seed=seed)
    recipe = RECIPE.but(seed=seed)
    with Progress(2 + len(WIDTHS), "demo", step="training") as progress:
        progress.say(f"BN3: one Bayesian network for every width, {recipe.epochs} epochs")
        bayesian = _nested(digits, seed)
        run = train(bayesian, digits, recipe, out=make_folder(out), quiet=not progress.is_live)
        progress.step()
        progress.say("FN3: one plain network for every width")
        fixed = _nested(digits, seed, order="uniform", weights=None)
        train(fixed, digits, recipe.but(objective="elbo", draws=2, coupled=0.0), quiet=not progress.is_live)
        progress.step()
        alone = []
        for width in WIDTHS:
            progress.say(f"alone: a plain network of the size of cut {width:g}")
            alone.append(_train_alone(digits, width, recipe, quiet=not progress.is_live))
            progress.step()
    methods = [
        Figures("BN3", [_scores(bayesian, digits, width) for width in WIDTHS]),
        Figures("FN3", [_scores(fixed, digits, width) for width in WIDTHS]),
        Figures("alone", alone),
    ]
    costs = [cost(bayesian, width, latency=True) for width in WIDTHS]
    picture = out / "curves.png"
    sizes = [price.macs for price in costs]
    draw_curves(
        picture,
        [Series(_LABELS[figures.method], sizes, _panels(figures)) for figures in methods],
        list(_panels(methods[0])),
        size="multiply-adds per image",
        title="digits 0 to 7 in clutter: one training run against one per size",
    )
    header = ["cut", "parameters", "MACs", "ms"]
    header += [f"{score} {figures.method}" for score in ("accuracy", "ECE", "AUPR") for figures in methods]
    rows = [_row(number, costs[number], methods) for number in range(len(WIDTHS))]
    page = _write_page(run, digits, methods[1:], costs)
    return "\n".join([text_table(header, rows), "", _NOTES.format(out=out, picture=picture, page=page)])


def _write_page(run: Run, digits: Data, others: Sequence[Figures], costs: Sequence[Cost]) -> Path:
    """Write the page of the nested network, with the other methods on the same axes."""
    assert run.folder is not None
    beside = [
        OtherNetworks(
            _LABELS[method.method],
            [(price, scores.to_dict()) for price, scores in zip(costs, method.scores, strict=True)],
        )
        for method in others
    ]
    words = shlex.quote(str(run.folder))
    sample = sample_of(digits, digits.batches("held_out", BATCH, limit=MOST_MEASURED), None, MOST_MEASURED)
    command = f"nestling report {words} --limit {MOST_MEASURED}"
    page = run.folder / PAGE_FILE
    write_page(page, run_page(report_of(run, words, command, sample, others=beside)))
    return page


def _nested(digits: Data, seed: int, **options: Any) -> Nested:  # noqa: ANN401
    fitting = models.options_for(NETWORK, digits.input_shape, digits.num_outputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = models.build(NETWORK, width=NETWORK_WIDTH, **fitting)
    return nest(network, torch.zeros(2, *digits.input_shape), num_blocks=NUM_BLOCKS, num_always=NUM_ALWAYS, **options)


def _train_alone(digits: Data, width: float, recipe: Recipe, *, quiet: bool) -> ClassScores:
    """The scores of a plain network with the size of a width, trained by itself for the same number of epochs."""
    network = extract(_nested(digits, recipe.seed, weights=None), width).requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network.apply(_reset)
    example = torch.zeros(2, *digits.input_shape)
    whole = nest(network, example, order="full", weights=None, num_blocks=2, num_always=1, sort="none")
    train(whole, digits, recipe.but(cuts=(1.0,), epochs=min(recipe.epochs, ALONE_EPOCHS)), quiet=quiet)
    return _scores(whole, digits, 1.0)


def _reset(module: nn.Module) -> None:
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()


def _scores(nested: Nested, digits: Data, width: float) -> ClassScores:
    held_out = digits.batches("held_out", BATCH)
    scores = evaluate(nested, digits.batches("test", BATCH), cut=width, ood=held_out)
    assert isinstance(scores, ClassScores)
    return scores


def _panels(figures: Figures) -> dict[str, list[float]]:
    return {
        "accuracy, %": [100 * scores.accuracy for scores in figures.scores],
        "calibration error, %": [100 * scores.ece for scores in figures.scores],
        "AUPR against 8 and 9, %": [100 * (scores.aupr or 0.0) for scores in figures.scores],
    }


def _row(number: int, price: Any, methods: Sequence[Figures]) -> list[str]:  # noqa: ANN401
    cells = [f"{WIDTHS[number]:g}", thousands(price.params), thousands(price.macs), f"{price.latency_ms:.3f}"]
    for panel in _panels(methods[0]):
        cells += [f"{_panels(figures)[panel][number]:.1f}" for figures in methods]
    return cells


_LABELS = {"BN3": "BN3: nested, Bayesian", "FN3": "FN3: nested, plain", "alone": "one network per size"}

_NOTES = """\
All in percent, on test images of digits 0 to 7 among pieces of other digits. AUPR: how well the entropy detects images
of 8 and 9, labels that no training image has. BN3 is one network with learned orders and Bayesian weights, FN3 one
network with fixed orders and plain weights, and "alone" is one plain network per size, trained by itself.

Saved: {out} (the nested network), {picture} (these curves),
       {page} (a page about the network: open it in a browser).
Next:  nestling evaluate {out} --cuts 0.2 0.4        the same network at widths of your choice
       nestling train mnist --model mlp --out runs/mnist
       nestling train your_images/ --model your_module:your_function --out runs/yours"""
