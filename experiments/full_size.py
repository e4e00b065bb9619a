"""The networks, data and lengths of the papers, for whoever has the GPUs: a function each, tested for one step.

NESTLING_DATA=folder torchrun --nproc-per-node 4 experiments/full_size.py bn3_vgg11_cifar10 --out runs/vgg11
python experiments/full_size.py fn3_channels_imagenet --data imagenet --out runs/channels

Sizes, epochs, batches, blocks and learning rates are those of the papers; how widths are drawn in a step is the
library's default for BN3, and the paper's for FN3. A natural-gradient step of a paper is SGD with momentum here. What
a paper leaves open is the library's default. ``--data`` is another data set's name, file or folder. A run folder is
read by ``nestling evaluate``, ``search`` and ``report``; one that was stopped goes on when the command is given again.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nestling as nl
from nestling.data import Data
from nestling.pruning import Pruned

SIXTEENTHS = tuple(number / 16 for number in (2, 4, 6, 8, 10, 12, 14, 16))
"""Eight widths, of which figure 5 of BN3 has twice as many."""


@dataclass(frozen=True)
class FullSize:
    """A training of a paper: the data by name, the network with its options, and how it is nested or pruned."""

    data: str
    network: str
    recipe: nl.Recipe
    options: dict[str, Any] = field(default_factory=dict)
    nesting: dict[str, Any] = field(default_factory=dict)
    pruning: dict[str, Any] | None = None
    size: int | None = None
    """The side that the images of a folder are brought to."""

    def load(self, source: str | None = None) -> Data:
        return nl.data.load(source or self.data, seed=self.recipe.seed, resize=self.size)

    def module(self, data: Data) -> nn.Module:
        sizes = nl.models.options_for(self.network, data.input_shape, data.num_outputs)
        return nl.models.build(self.network, **sizes, **self.options)

    def run(self, data: Data, out: Path | None, **changes: Any) -> nl.Run | Pruned:  # noqa: ANN401
        """Train it, with entries of the recipe changed."""
        torch.manual_seed(self.recipe.seed)
        module, example, recipe = self.module(data), torch.zeros(2, *data.input_shape), self.recipe.but(**changes)
        if self.pruning is not None:
            return nl.prune(module, example, data, recipe=recipe, out=out, **self.pruning)
        return nl.train(nl.nest(module, example, **self.nesting), data, recipe, out=out)


def _bn3(num_blocks: int, num_always: int) -> dict[str, Any]:
    return {"weights": "gaussian", "num_blocks": num_blocks, "num_always": num_always}


def _steps(epochs: int, batch_size: int, factor: float, *milestones: float, **changes: Any) -> nl.Recipe:  # noqa: ANN401
    """SGD from 0.1, which falls by a factor at shares of the epochs."""
    fallen = {"schedule": "step", "milestones": milestones, "lr_factor": factor, "lr_warm_up": 0.0}
    own = nl.Recipe(epochs=epochs, batch_size=batch_size, optimiser="sgd", lr=0.1, cuts=SIXTEENTHS)
    return own.but(**fallen | changes)


def _every(epochs: int, of: int) -> tuple[float, ...]:
    return tuple(epoch / of for epoch in range(epochs, of, epochs))


FN3: dict[str, Any] = {"objective": "elbo", "explore": 0.0, "coupled": 0.0, "sandwich": 0.0, "draws": 1}
PLAIN: dict[str, Any] = {"weights": None, "order": "uniform", "rescale": True}


def bn3_vgg11_cifar10(data: str = "cifar10") -> FullSize:
    """Figure 5: VGG11 of 1.5 times the channels, 600 epochs, 32 blocks of which 2 are always kept."""
    return FullSize(data, "vgg11", _steps(600, 512, 0.1, *_every(150, 600)), {"width": 1.5}, _bn3(32, 2))


def bn3_vgg11_cifar100() -> FullSize:
    """The same on CIFAR-100."""
    return bn3_vgg11_cifar10("cifar100")


def fn3_vgg11_cifar10() -> FullSize:
    """FN3 as figure 5 compares with it."""
    nesting = PLAIN | {"num_blocks": 32, "num_always": 2}
    return FullSize("cifar10", "vgg11", _steps(600, 512, 0.1, *_every(150, 600), **FN3), {"width": 1.5}, nesting)


def bn3_vgg11_tiny_imagenet() -> FullSize:
    """Tiny ImageNet: 300 epochs, 8 of 32 blocks always kept."""
    recipe = _steps(300, 512, 0.3, *_every(25, 300))
    return FullSize("tiny_imagenet", "vgg11", recipe, {"width": 1.5}, _bn3(32, 8))


def bn3_mobilenet_v2_tiny_imagenet() -> FullSize:
    """The same data with MobileNetV2 of 1.5 times the channels in 16 blocks."""
    recipe = _steps(300, 512, 0.3, *_every(40, 300))
    return FullSize("tiny_imagenet", "mobilenet_v2", recipe, {"width": 1.5}, _bn3(16, 1))


def bn3_resnext_tiny_imagenet() -> FullSize:
    """The same data with ResNeXt-Cifar."""
    recipe = _steps(300, 512, 0.3, *_every(30, 300))
    return FullSize("tiny_imagenet", "resnext_cifar", recipe, nesting=_bn3(32, 8))


def bn3_unet_lidc() -> FullSize:
    """Figure 7: the U-Net 32-64-128-192 at 128 x 128 pixels, 6 of 32 blocks always kept."""
    recipe = _steps(180, 32, 0.1, *_every(60, 180), optimiser="adamw", lr=1e-4)
    return FullSize("lidc", "unet", recipe, nesting=_bn3(32, 6) | {"sampling": "shared"})


def fn3_paths_cifar10() -> FullSize:
    """72 paths of ResNeXt-29, one block each, to remove by ``nestling search``."""
    nesting = PLAIN | {"kinds": ("path",), "num_blocks": 8, "num_always": 1}
    return FullSize("cifar10", "resnext_cifar", _steps(300, 128, 0.1, 0.5, 0.75, **FN3), nesting=nesting)


def fn3_bits_cifar10(data: str = "cifar10") -> FullSize:
    """Table 2: the nested quantiser of MobileNetV2, 600 epochs along a cosine."""
    recipe = nl.Recipe(epochs=600, batch_size=128, cuts=(0.25, 0.5, 0.75, 1.0)).but(**FN3)
    nesting = PLAIN | {"rescale": False, "kinds": ("bit",), "num_blocks": 4, "num_always": 1}
    return FullSize(data, "mobilenet_v2", recipe, nesting=nesting)


def fn3_bits_cifar100() -> FullSize:
    """The same on CIFAR-100."""
    return fn3_bits_cifar10("cifar100")


def fn3_channels_imagenet() -> FullSize:
    """Channels of MobileNetV2 on ImageNet, a folder of images with train and val: 400 epochs, 35 % always kept."""
    recipe = nl.Recipe(epochs=400, batch_size=256, cuts=SIXTEENTHS[2:]).but(**FN3)
    nesting = PLAIN | {"num_blocks": 20, "num_always": 7}
    return FullSize("imagenet", "mobilenet_v2", recipe, nesting=nesting, size=224)


def bb_vgg16_cifar10(data: str = "cifar10") -> FullSize:
    """Beta-Bernoulli dropout on the VGG-like network, 200 epochs after as many of plain training."""
    recipe = nl.Recipe(epochs=200, batch_size=100, lr=1e-3, lr_warm_up=0.0)
    pruning = {"method": "beta_bernoulli", "pretrain": recipe.but(keep="last")}
    return FullSize(data, "vgg16_like", recipe, pruning=pruning)


def bb_vgg16_cifar100() -> FullSize:
    """The same on CIFAR-100."""
    return bb_vgg16_cifar10("cifar100")


def vbd_vgg16_cifar10() -> FullSize:
    """Variational Bayesian dropout on the same network."""
    found = bb_vgg16_cifar10()
    return FullSize(found.data, found.network, found.recipe, pruning={"method": "vbd", "pretrain": found.recipe})


TRAININGS: dict[str, Callable[[], FullSize]] = {
    own.__name__: own
    for own in (
        bn3_vgg11_cifar10,
        bn3_vgg11_cifar100,
        fn3_vgg11_cifar10,
        bn3_vgg11_tiny_imagenet,
        bn3_mobilenet_v2_tiny_imagenet,
        bn3_resnext_tiny_imagenet,
        bn3_unet_lidc,
        fn3_paths_cifar10,
        fn3_bits_cifar10,
        fn3_bits_cifar100,
        fn3_channels_imagenet,
        bb_vgg16_cifar10,
        bb_vgg16_cifar100,
        vbd_vgg16_cifar10,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", choices=tuple(TRAININGS))
    parser.add_argument("--data", help="the data set, by name, file or folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    training = TRAININGS[asked.training]()
    training.run(training.load(asked.data), asked.out, seed=asked.seed)


if __name__ == "__main__":
    main()
