"""Segmentation of lung nodules: how well samples match four graders (GED), by width, beside U-Nets of other kinds.

NESTLING_DATA=folder python experiments/bn3/lidc.py run bn3 nested_plain dropout ensemble probabilistic --out lidc.jsonl
python experiments/bn3/lidc.py table lidc.jsonl

BN3's figure 7, on the 2,024 LIDC crops that are there, halved to 64 x 64 pixels and split by patient. Each network,
and each member of the ensemble, is trained for as many epochs. Masks are the likelier class of each pixel of a sample;
samples of one image are the first 1, 4, 8 and 16 of the same 16. A network without noise has one mask.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nestling as nl
from nestling.data import Data, Split
from nestling.prediction.masks import dice, generalised_energy_distance
from nestling.training.run_batches import make_feed

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, made, markdown, num_seeds, spread

SIZE, SAMPLES = 64, (1, 4, 8, 16)
CUTS = (6 / 32, 10 / 32, 0.5, 0.75, 1.0)
"""From the share that is always kept, by the one from which the paper finds the distance stable (32.29 %)."""
MEMBERS, LATENT, FEATURES, DROPPED = 4, 6, 16, 0.5
LR = 1e-3
"""Of the probabilistic U-Net, along a cosine to zero; the others have the library's own."""

Draw = Callable[[Tensor], Tensor]
"""From images (B, 1, H, W) to the probabilities of up to 16 samples (S, B, 2, H, W)."""
Mode = dict[str, Any]
NESTED: dict[str, Mode] = {
    "bn3": {"weights": "ivon", "sampling": "shared"},
    "nested_plain": {"weights": None},
    "fn3": {"weights": None, "order": "uniform"},
}
FN3: Mode = {"objective": "elbo", "explore": 0.0, "coupled": 0.0, "sandwich": 0.0, "draws": 1}
METHODS = (*NESTED, "dropout", "ensemble", "probabilistic")


def halved(data: Data) -> Data:
    """Images of 64 x 64 pixels: means of four, and where at least half of the four are marked."""

    def smaller(split: Split | None) -> Split | None:
        if split is None:
            return None
        assert isinstance(split.inputs, Tensor)
        step = split.inputs.shape[-1] // SIZE
        images = F.avg_pool2d(split.inputs.float(), step).round().to(torch.uint8)
        masks = (F.avg_pool2d(split.targets.float(), step) >= 0.5).to(torch.uint8)
        return replace(split, inputs=images, targets=masks)

    return replace(data, train=smaller(data.train), validation=smaller(data.validation), test=smaller(data.test))


def unet(width: float, out_channels: int = 2) -> nl.models.UNet:
    return nl.models.UNet(width=width, out_channels=out_channels)


def on_cpu(network: nn.Module) -> nn.Module:
    """The same network, whose weights now lie as a CPU reads them fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def blocks_of(width: float) -> Mode:
    """32 blocks, 6 of them always kept, or as many fewer as the finest level has channels."""
    number = min(32, round(32 * width))
    return {"num_blocks": number, "num_always": max(1, round(6 / 32 * number))}


def with_dropout(network: nl.models.UNet) -> nl.models.UNet:
    """Half of what the innermost levels read is dropped, in training and in prediction."""
    for levels, places in ((network.encoders, (1, 2)), (network.decoders, (0, 1))):
        for place in places:
            levels[place] = nn.Sequential(nn.Dropout(DROPPED), levels[place])
    network.bottom = nn.Sequential(nn.Dropout(DROPPED), network.bottom)
    return network


class ProbabilisticUNet(nn.Module):
    """A U-Net whose last features are joined with a latent of six numbers (Kohl et al. 2018)."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.unet = unet(width, FEATURES)
        self.prior, self.posterior = _encoder(1, width), _encoder(2, width)
        self.head = nn.Sequential(nn.Conv2d(FEATURES + LATENT, FEATURES, 1), nn.ReLU(), nn.Conv2d(FEATURES, 2, 1))

    def logits(self, features: Tensor, latent: Tensor) -> Tensor:
        planes = latent[:, :, None, None].expand(-1, -1, *features.shape[2:])
        found: Tensor = self.head(torch.cat((features, planes), 1))
        return found

    def negative_bound(self, images: Tensor, masks: Tensor) -> Tensor:
        """Cross-entropy, summed over pixels, and the divergence of the posterior from the prior; of one example."""
        prior = _normal(self.prior(images))
        posterior = _normal(self.posterior(torch.cat((images, masks[:, None].to(images) - 0.5), 1)))
        logits = self.logits(self.unet(images), posterior.rsample())
        error = F.cross_entropy(logits, masks.long(), reduction="sum") / len(images)
        return error + torch.distributions.kl_divergence(posterior, prior).sum(1).mean()

    def forward(self, images: Tensor) -> Tensor:
        features, prior = self.unet(images), _normal(self.prior(images))
        return torch.stack([self.logits(features, prior.rsample()) for _ in range(max(SAMPLES))])


def _encoder(channels: int, width: float) -> nn.Module:
    """Means and log deviations of the latent, from the means of the deepest features."""
    layers: list[nn.Module] = []
    for size in (round(width * own) for own in (32, 64, 128, 192)):
        layers += [nn.Conv2d(channels, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(), nn.AvgPool2d(2)]
        channels = size
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2 * LATENT))


def _normal(numbers: Tensor) -> torch.distributions.Normal:
    mean, log_deviation = numbers.float().chunk(2, 1)
    return torch.distributions.Normal(mean, log_deviation.clamp(-7, 5).exp())


def trained_probabilistic(data: Data, width: float, recipe: nl.Recipe) -> ProbabilisticUNet:
    """The probabilistic U-Net after as many epochs of the same batches."""
    network = ProbabilisticUNet(width)
    on_cpu(network)
    batches = make_feed(data, recipe).train
    optimiser = torch.optim.AdamW(network.parameters(), LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.epochs * len(batches))
    for epoch in range(recipe.epochs):
        batches.set_epoch(epoch)
        for images, masks in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bfloat16"):
                loss = network.negative_bound(images, masks)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            optimiser.step()
            schedule.step()
    return network.eval()


def alone(network: nn.Module, data: Data, recipe: nl.Recipe) -> nn.Module:
    """A network that was trained by itself, at full width only."""
    nested = nl.nest(on_cpu(network), torch.zeros(2, 1, SIZE, SIZE), order="full", weights=None)
    nl.train(nested, data, recipe.but(cuts=(1.0,)), quiet=True)
    return nl.extract(nested, 1.0).eval()


def draws_of(members: Sequence[nn.Module], times: int = 1) -> Draw:
    """The answers of networks, each asked so many times."""
    return lambda images: torch.stack([own(images).softmax(1) for own in members for _ in range(times)])


def networks(name: str, data: Data, width: float, recipe: nl.Recipe) -> dict[str, Draw]:
    """What a method trains, as draws of masks at each width that it can run at."""
    if name in NESTED:
        return nested_draws(name, data, width, recipe)
    if name == "probabilistic":
        probabilistic = trained_probabilistic(data, width, recipe)
        return {"1.0": lambda images: probabilistic(images).softmax(2)}
    if name == "ensemble":
        members = []
        for number in range(MEMBERS):
            torch.manual_seed(1000 * (number + 1) + recipe.seed)
            members.append(alone(unet(width), data, recipe.but(seed=1000 * number + recipe.seed)))
        return {"1.0": draws_of(members), "one member": draws_of(members[:1])}
    network = alone(with_dropout(unet(width)), data, recipe)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    return {"1.0": draws_of([network], max(SAMPLES))}


def nested_draws(name: str, data: Data, width: float, recipe: nl.Recipe) -> dict[str, Draw]:
    nested = nl.nest(on_cpu(unet(width)), torch.zeros(2, 1, SIZE, SIZE), **blocks_of(width), **NESTED[name])
    recipe = recipe.but(cuts=CUTS, **(FN3 if name == "fn3" else {}))
    nl.train(nested, data, recipe, quiet=True)
    feed = make_feed(data, recipe)
    found = {}
    for cut in CUTS:
        nl.recalibrate(nested, feed.recalibration, cut)
        found[str(cut)] = _at(nested, cut, 0 if NESTED[name]["weights"] is None else max(SAMPLES))
    return found


def _at(nested: nl.Nested, cut: float, samples: int) -> Draw:
    def draw(images: Tensor) -> Tensor:
        found = nl.predict(nested, images, cut=cut, samples=samples, keep_samples=True, seed=0)
        assert isinstance(found, nl.prediction.ClassPrediction)
        return found.probs[None] if found.samples is None else found.samples

    return draw


@torch.no_grad()
def scores(draw: Draw, data: Data) -> dict[str, float]:
    """GED by the number of samples; of the mean of all, Dice with a grader, and nats per pixel and grader."""
    totals: dict[str, float] = {}
    for images, raters in data.batches("test", 50):
        probs = draw(images).double()
        masks = probs.argmax(2).flatten(2).transpose(0, 1)
        graded, mean = raters.flatten(2), probs.mean(0)
        best = mean.argmax(1).flatten(1)[:, None]
        likelihood = mean.clamp(min=1e-9).log().gather(1, raters.long().clamp(max=1))
        own = {"dice": dice(best, graded, 2).mean((1, 2)), "nll": -likelihood.mean((1, 2, 3))}
        own |= {f"ged_{n}": generalised_energy_distance(masks[:, :n], graded, 2) for n in SAMPLES}
        for key, values in own.items():
            totals[key] = totals.get(key, 0.0) + float(values.sum())
    return {key: round(total / len(data.split("test")), 5) for key, total in totals.items()}


def run(name: str, seed: int, width: float, epochs: int, precision: Any) -> Row:  # noqa: ANN401
    data = halved(nl.data.load("lidc", seed=seed))
    torch.manual_seed(seed)
    recipe = nl.Recipe(epochs=epochs, batch_size=32, seed=seed, precision=precision)
    began = time.process_time()
    draws = networks(name, data, width, recipe)
    seconds = round(time.process_time() - began, 1)
    about = {"method": name, "seed": seed, "width": width, "epochs": epochs, "precision": precision}
    return about | {"CPU seconds": seconds, "rows": {cut: scores(draw, data) for cut, draw in draws.items()}}


def table(rows: list[Row]) -> str:
    """GED with 1, 4, 8 and 16 samples, Dice of the mean, and nats per thousand pixels; a row per method and width."""
    lines = []
    for (method, width, epochs), own in grouped(rows, "method", "width", "epochs").items():
        for cut in own[0]["rows"]:
            cells = [row["rows"][cut] for row in own if cut in row["rows"]]
            label = cut if cut == "one member" else f"{100 * float(cut):.4g} %"
            figures = [spread([cell[f"ged_{number}"] for cell in cells], 3) for number in SAMPLES]
            figures += [spread([cell["dice"] for cell in cells], 3), spread([1000 * cell["nll"] for cell in cells], 1)]
            seconds = spread([row["CPU seconds"] for row in own], 0)
            lines.append([f"{method}, {num_seeds(own)}", f"{width:g}, {epochs}", label, *figures, seconds])
    head = ["method", "U-Net, epochs", "width kept", *(f"GED, {n} sample{'s' * (n > 1)}" for n in SAMPLES)]
    return markdown([*head, "Dice of the mean", "nats per 1,000 pixels", "CPU s"], lines)


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("methods", nargs="+", choices=METHODS)
    commands.run.add_argument("--seeds", type=int, nargs="+", default=[0])
    commands.run.add_argument("--width", type=float, default=0.5, help="of the U-Net 32-64-128-192")
    commands.run.add_argument("--epochs", type=int, default=16)
    commands.run.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    how = {"width": asked.width, "epochs": asked.epochs, "precision": asked.precision}
    for seed in asked.seeds:
        for name in asked.methods:
            if not made(asked.out, method=name, seed=seed, **how):
                add(asked.out, run(name, seed, **how))


if __name__ == "__main__":
    main()
