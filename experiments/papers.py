"""Runs what is missing of a paper's rows, one run after another; ``list`` says which rows there are and which not.

NESTLING_DATA=folder python experiments/papers.py run bn3
python experiments/papers.py list bn3 fn3 sparse_vd vbd beta_bernoulli

Each run is a process of its own that adds its rows to the file beside its script, so that a stopped one is repeated
and no finished one is. ``python experiments/pages.py write`` then makes the tables again.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from rows import made

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
LAST_ABLATION = "mask after the norm, cut to size"
WEIGHTS = "$NESTLING_DATA/pretrained/resnet20_cifar10.safetensors"


@dataclass(frozen=True)
class Asked:
    """A run: its script with arguments, the file of its rows, and what of a row says that it was made."""

    command: str
    rows: str
    key: dict[str, Any]

    @property
    def path(self) -> Path:
        return HERE / self.rows

    @property
    def is_made(self) -> bool:
        return made(self.path, **self.key)

    def run(self) -> None:
        script, *arguments = shlex.split(os.path.expandvars(self.command))
        subprocess.run([sys.executable, str(HERE / script), *arguments, "--out", str(self.path)], check=True)


def bn3() -> Iterator[Asked]:
    """Figure 5 on CIFAR-10, figure 7 on LIDC, and what the paper has not: MNIST, fine-tuning, ablations."""
    several = {"nested_plain": SEEDS, "nested": SEEDS, "alone": SEEDS, "fn3": (0,), "alone_bayesian": (0,)}
    for method, seeds in {**several, "nested_plain_uniform": (0,)}.items():
        for seed in seeds:
            yield _widths(method, seed, "vgg11", 12)
    yield _widths("nested_plain_two", 0, "vgg11", 40)
    for method in ("alone", "nested_plain"):
        yield _widths(method, 0, "vgg11", 40)
        yield _widths(method, 0, "mobilenet_v2", 4, "float32")
        yield _widths(method, 0, "resnext_cifar", 4)
    for method in ("plain", "bayesian"):
        command = f"bn3/pretrained.py run {WEIGHTS} {method} --precision bfloat16"
        yield Asked(command, "bn3/pretrained.jsonl", {"method": method, "seed": 0, "epochs": 10})
    for seed in SEEDS:
        for method in ("bn3", "fn3", "fn3_our_draws", "plain"):
            yield Asked(f"bn3/mnist.py run {method} {seed}", "bn3/mnist.jsonl", _key(method, seed))
        yield Asked(f"bn3/ablations.py run --seeds {seed}", "bn3/ablations.jsonl", _key(LAST_ABLATION, seed))
        for method in ("bn3", "nested_plain", "fn3", "dropout", "ensemble", "probabilistic"):
            yield Asked(f"bn3/lidc.py run {method} --seeds {seed}", "bn3/lidc.jsonl", _key(method, seed))
    for data, seeds in {"mnist": (0,), "digits": SEEDS}.items():
        for seed in seeds:
            key = {"data": data, "seed": seed}
            yield Asked(f"bn3/one_run.py run {data} {seed}", "bn3/one_run.jsonl", key)
    for network, how in {"lenet_300_100": "", "vgg11": " --epochs 30 --precision bfloat16 --sets 1"}.items():
        command = f"bn3/one_pass.py run {network} 0{how}"
        yield Asked(command, "bn3/one_pass.jsonl", {"network": network, "seed": 0})


def _widths(method: str, seed: int, network: str, epochs: int, precision: str = "bfloat16") -> Asked:
    options = f"--network {network} --seeds {seed} --epochs {epochs} --precision {precision}"
    widest = {"width": 1.0} if method.startswith("alone") else {}  # the last of four
    key = _key(method, seed) | {"network": network, "budget": epochs, "precision": precision} | widest
    return Asked(f"bn3/widths.py run {method} {options}", "bn3/widths.jsonl", key)


def fn3() -> Iterator[Asked]:
    """Neurons on MNIST; channels and bits on CIFAR-10 beside their rivals; layers and paths."""
    for seed in SEEDS:
        for method in ("fn3", "plain random"):
            yield Asked(f"fn3/neurons.py run {shlex.quote(method)} {seed}", "fn3/neurons.jsonl", _key(method, seed))
        for method in ("nested", "us_net", "slimmable", "nested bits", "adabits"):
            yield Asked(
                f"fn3/cifar.py run {shlex.quote(method)} {seed}",
                "fn3/cifar.jsonl",
                _key(method, seed) | {"changes": {}},
            )
        for kind in ("units", "bits", "both"):
            yield Asked(
                f"fn3/together.py run {kind} --seeds {seed}", "fn3/together.jsonl", {"kind": kind, "seed": seed}
            )
        for kind in ("layer", "path", "channel", "bit"):
            yield Asked(f"fn3/kinds.py run {kind} {seed}", "fn3/kinds.jsonl", {"kind": kind, "seed": seed})


def sparse_vd() -> Iterator[Asked]:
    """Weights of the two LeNets, for both methods on weights, and random labels."""
    for seed in SEEDS:
        for method in ("sparse_vd", "vbd"):
            yield _weights(method, "lenet_300_100", seed, "", {"threshold": 0.5, "epochs": 150})
            how = " --precision bfloat16 --epochs 90 --batch-size 500 --lr 6e-3 --order-lr 4e-3 --finish 0"
            for threshold, tune in ((0.5, 0), (-0.5, 15)):
                own = f"{how} --threshold {threshold} --tune {tune}"
                yield _weights(method, "lenet_5_caffe", seed, own, {"threshold": threshold, "epochs": 90})
    for examples, epochs in ((10_000, 100), (2_000, 300)):
        for method in ("sparse_vd", "bernoulli", "none"):
            command = f"sparse_vd/random_labels.py run {method} 0 --examples {examples} --epochs {epochs}"
            yield Asked(command, "sparse_vd/labels.jsonl", _key(method, 0) | {"examples": examples})


def _weights(method: str, network: str, seed: int, how: str, key: dict[str, Any]) -> Asked:
    command = f"sparse_vd/weights.py run {method} {network} {seed}{how}"
    return Asked(command, "sparse_vd/weights.jsonl", _key(method, seed) | {"network": network} | key)


def vbd() -> Iterator[Asked]:
    """Seven regularisers on MNIST; the weights and units that it prunes are rows of sparse_vd and beta_bernoulli."""
    for seed in SEEDS:
        for width in (340, 820):
            for name in ("none", "bernoulli", "gaussian", "gaussian_local", "concrete", "variational", "vbd"):
                command = f"vbd/dropout.py run {name} {width} {seed} --precision bfloat16"
                yield Asked(command, "vbd/dropout.jsonl", {"name": name, "width": width, "seed": seed})


def beta_bernoulli() -> Iterator[Asked]:
    """Units of LeNet-500-300 and LeNet-5-Caffe by every gate."""
    for seed in SEEDS:
        for network in ("lenet_500_300", "lenet_5_caffe"):
            for method in ("vbd", "beta_bernoulli", "log_normal", "dependent_beta_bernoulli"):
                bb = "beta_bernoulli" in method
                how = " --epochs 40 --order-lr 0.05 --kappa 5" if bb else ""
                how += " --precision bfloat16" if network == "lenet_5_caffe" else ""
                command = f"beta_bernoulli/units.py run {method} {network} {seed}{how}"
                yield Asked(command, "beta_bernoulli/units.jsonl", _key(method, seed) | {"network": network})


def _key(method: str, seed: int) -> dict[str, Any]:
    return {"method": method, "seed": seed}


PAPERS = {own.__name__: own for own in (bn3, fn3, sparse_vd, vbd, beta_bernoulli)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "list"))
    parser.add_argument("papers", nargs="+", choices=tuple(PAPERS))
    asked = parser.parse_args()
    for paper in asked.papers:
        for one in PAPERS[paper]():
            if asked.command == "list":
                print("made   " if one.is_made else "missing", one.command)
            elif not one.is_made:
                print(one.command, flush=True)
                one.run()


if __name__ == "__main__":
    main()
