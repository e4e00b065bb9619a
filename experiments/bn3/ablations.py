"""What each part of BN3 does: one part changed at a time, on a small convolution network and 4,000 MNIST images.

NESTLING_DATA=folder python experiments/bn3/ablations.py run --seeds 0 1 2 --out ablations.jsonl
python experiments/bn3/ablations.py table ablations.jsonl

``as in the paper`` draws the widths of each layer from its learned order, for two halves of a batch, and its weights
are Gaussian; every other row changes one thing of it. KMNIST is out of distribution, scored by entropy.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nestling as nl
from nestling.data import Data
from nestling.distributions import Downhill
from nestling.distributions.noise import gumbel_noise
from nestling.distributions.orders import ORDERS
from nestling.distributions.orders.downhill import relaxed_steps
from nestling.distributions.orders.order import masks_from_steps
from nestling.prediction import ClassScores
from nestling.training.run_batches import make_feed

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, made, markdown, num_seeds, spread

CUTS = (0.25, 0.5, 1.0)
CHANNELS, NUM_BLOCKS, NUM_ALWAYS = (16, 16, 32), 16, 2
EXAMPLES, VALIDATED, TESTED, FOREIGN, DRAWS = 4000, 500, 2000, 500, 4
Changes = dict[str, Any]
DRAWN: Changes = {"objective": "elbo", "draws": 2, "explore": 0.0, "coupled": 0.0, "sandwich": 0.0}
METHODS: dict[str, tuple[Changes, Changes]] = {
    "as in the paper": ({}, {}),
    "relaxed masks": ({}, {"estimator": "relaxed"}),
    "straight-through masks": ({}, {"estimator": "straight_through"}),
    "relaxed masks, the released code's logits": ({"order": "released"}, {"estimator": "relaxed"}),
    "uniform order": ({"order": "uniform"}, {}),
    "geometric order": ({"order": "geometric"}, {}),
    "the bound's weight of the order's divergence": ({}, {"order_weight": None}),
    "rescaled by keep probabilities": ({"rescale": True}, {}),
    "divergence: Molchanov's fit": ({}, {"weight_kl": "molchanov"}),
    "divergence: hierarchical (VBD)": ({}, {"weight_kl": "hierarchical"}),
    "divergence: BN3's": ({}, {"weight_kl": "bn3"}),
    "divergence: BN3's, refitted": ({}, {"weight_kl": "bn3_refitted"}),
    "plain weights": ({"weights": None}, {}),
    "plain weights, uniform order (FN3)": ({"weights": None, "order": "uniform"}, {}),
    "coupled and extreme widths": ({}, {"explore": 0.5, "coupled": 0.5, "sandwich": 0.2}),
    "every width in each step (the default)": ({"weights": "auto"}, {"objective": "every_width", "draws": 1}),
}
"""How each is nested, and what of the recipe it changes."""
MASKED = ("mask before the norm", "mask after the norm")


class Released(Downhill):
    """The released code's order: probabilities in place of log-probabilities, so that widths are nearly uniform."""

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        probs = self.log_probs().detach().exp()
        probs = probs.expand(*shape, *probs.shape)
        return (probs + gumbel_noise(probs, generator)).argmax(-1) + self.num_always

    def rsample(
        self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None, *, hard: bool = False
    ) -> Tensor:
        probs = self.log_probs().exp()
        probs = probs.expand(*shape, *probs.shape)
        steps = relaxed_steps(probs, gumbel_noise(probs, generator), self.temperature)
        relaxed = masks_from_steps(steps, self.num_always)
        return self.straight_through(relaxed) if hard else relaxed


ORDERS.setdefault("released", Released.learned)


class Small(nn.Module):
    """Three convolutions with norms, and a linear layer; ``masks`` can silence channels before or after the norms."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip((1, *CHANNELS[:-1]), CHANNELS, strict=True))
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1, bias=False) for i, o in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in CHANNELS)
        self.head = nn.Linear(9 * CHANNELS[-1], 10)
        self.kept = 1.0
        self.before = self.after = False

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            x = self._masked(x) if self.before else x
            x = norm(x).relu()
            x = F.max_pool2d(self._masked(x) if self.after else x, 2)
        logits: Tensor = self.head(x.flatten(1))
        return logits

    def _masked(self, x: Tensor) -> Tensor:
        return x * (torch.arange(x.shape[1]) < self.kept * x.shape[1]).to(x)[:, None, None]


def data_of(seed: int) -> Data:
    data = nl.data.load("mnist", seed=seed, validation=VALIDATED)
    return replace(data, train=data.split("train").drawn(EXAMPLES), test=data.split("test").drawn(TESTED))


def figures_of(scores: Any) -> dict[str, float]:  # noqa: ANN401
    assert isinstance(scores, ClassScores)
    found = {"accuracy": 100 * scores.accuracy, "nll": scores.nll, "ece": 100 * scores.ece}
    return {name: round(value, 4) for name, value in (found | {"aupr": 100 * (scores.aupr or 0.0)}).items()}


def run(name: str, seed: int, epochs: int) -> Iterator[Row]:
    torch.manual_seed(seed)
    data, began = data_of(seed), time.process_time()
    if name in MASKED:
        rows = masked(name.split()[1] == "before", data, seed, epochs)
    else:
        rows = {name: nested(name, data, seed, epochs)}
    seconds = round(time.process_time() - began, 1)
    for label, found in rows.items():
        kept = found.pop("kept", {})
        about = {"method": label, "seed": seed, "epochs": epochs, "CPU seconds": seconds}
        yield about | {"rows": found} | ({"kept": kept} if kept else {})


def nested(name: str, data: Data, seed: int, epochs: int) -> dict[str, Any]:
    """Scores at each cut, and the mean number of blocks that each learned order keeps."""
    nesting, changes = METHODS[name]
    options: Changes = {"num_blocks": NUM_BLOCKS, "num_always": NUM_ALWAYS, "weights": "gaussian"} | nesting
    network = nl.nest(Small(), torch.zeros(2, 1, 28, 28), **options)
    recipe = nl.Recipe(epochs=epochs, seed=seed, cuts=CUTS).but(**DRAWN | changes)
    nl.train(network, data, recipe, quiet=True)
    feed, found = make_feed(data, recipe), {}
    for cut in CUTS:
        nl.recalibrate(network, feed.recalibration, cut)
        samples = 0 if options["weights"] is None else DRAWS
        foreign = nl.data.load("kmnist", splits=("test",)).normalised_like(data).batches("test", 500, limit=FOREIGN)
        found[str(cut)] = figures_of(
            nl.evaluate(network, data.batches("test", 500), cut=cut, samples=samples, ood=foreign)
        )
    kept = [round(float(order.expected_width().detach()), 2) for order in network.orders.values()]
    return {**found, "kept": kept}


def masked(before: bool, data: Data, seed: int, epochs: int) -> dict[str, dict[str, Any]]:
    """A plain network that is trained with uniform widths, by masks; its scores under masks, and cut to size.

    Cut to size, a channel that is not kept is never read. That is what a mask after the norm says too, but a mask
    before it leaves what the norm makes of zero.
    """
    network, recipe = Small(), nl.Recipe(epochs=epochs, seed=seed)
    network.before, network.after = before, not before
    batches = make_feed(data, recipe).train
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * len(batches))
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for images, labels in batches:
            network.kept = int(torch.randint(NUM_ALWAYS, NUM_BLOCKS + 1, ())) / NUM_BLOCKS
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(network(images), labels))
            optimiser.step()
            schedule.step()
    name = MASKED[0] if before else MASKED[1]
    rows: dict[str, dict[str, Any]] = {f"{name}, under masks": {}, f"{name}, cut to size": {}}
    for cut in CUTS:
        network.kept = cut
        for label, own in rows.items():
            network.after = not before or label.endswith("size")
            recollected(network, list(make_feed(data, recipe).recalibration))
            own[str(cut)] = figures_of(nl.evaluate(network.eval(), data.batches("test", 500), samples=0))
    return rows


def recollected(network: nn.Module, batches: list[Any]) -> None:
    """The statistics of the norms, from these batches alone."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        network.train()
        for images, _ in batches:
            network(images)


def table(rows: list[Row]) -> str:
    """Accuracy % / NLL / ECE % / AUPR % at each width; means, with the spread of accuracy."""
    lines = []
    for (method, epochs), own in grouped(rows, "method", "epochs").items():
        cells = [_cell([row["rows"][str(cut)] for row in own]) for cut in CUTS]
        kept = [row["kept"] for row in own if row.get("kept") and None not in row["kept"]]
        blocks = (
            "-".join(spread([layer[place] for layer in kept], 1).split(" ")[0] for place in range(3)) if kept else "-"
        )
        seconds = spread([row["CPU seconds"] for row in own], 0).split(" ")[0]
        lines.append([f"{method} ({num_seeds(own)}), {epochs} epochs", *cells, blocks, seconds])
    return markdown(["", *(f"{cut:.0%}" for cut in CUTS), "blocks kept per layer", "CPU s"], lines)


def _cell(rows: list[Row]) -> str:
    nll, ece, aupr = (statistics.mean(row[key] for row in rows) for key in ("nll", "ece", "aupr"))
    accuracy = spread([row["accuracy"] for row in rows], 1)
    return f"{accuracy} / {nll:.3f} / {ece:.1f} / {f'{aupr:.1f}' if aupr else '-'}"


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("--only", nargs="+", choices=(*METHODS, *MASKED), default=(*METHODS, *MASKED))
    commands.run.add_argument("--seeds", type=int, nargs="+", default=[0])
    commands.run.add_argument("--epochs", type=int, default=8)
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    for seed in asked.seeds:
        for name in asked.only:
            first = f"{name}, under masks" if name in MASKED else name
            if not made(asked.out, method=first, seed=seed, epochs=asked.epochs):
                for row in run(name, seed, asked.epochs):
                    add(asked.out, row)


if __name__ == "__main__":
    main()
