"""The scores of the segmentation experiment, against enumeration over small masks."""

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import nestling as nl
from nestling.data import Split

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "bn3"))
import lidc


def data_of(images, masks):
    """A data set whose test part is these images and masks."""
    data = nl.data.load("digits")
    return replace(data, train=None, validation=None, test=Split(images, masks), mean=(0.0,), std=(1.0,))


def distance(left, right):
    left, right = set(np.flatnonzero(left)), set(np.flatnonzero(right))
    return 1 - len(left & right) / len(left | right) if left | right else 0.0


def energy(samples, raters):
    def mean(left, right):
        return np.mean([distance(a, b) for a, b in itertools.product(left, right)])

    return 2 * mean(samples, raters) - mean(samples, samples) - mean(raters, raters)


def test_distances_are_those_of_the_first_samples():
    generator = torch.Generator().manual_seed(0)
    raters = torch.randint(2, (3, 4, 2, 3), generator=generator, dtype=torch.uint8)
    probs = torch.rand(16, 3, 2, 2, 3, generator=generator).softmax(2)
    found = lidc.scores(
        lambda images: probs[:, : len(images)], data_of(torch.zeros(3, 1, 2, 3, dtype=torch.uint8), raters)
    )
    masks = probs.argmax(2).flatten(2).numpy()
    for number in lidc.SAMPLES:
        expected = np.mean([energy(masks[:number, b], raters[b].flatten(1).numpy()) for b in range(3)])
        assert found[f"ged_{number}"] == pytest.approx(expected, abs=1e-5)
    of_labels = [
        math.log(probs[:, b, int(raters[b, r, i, j]), i, j].mean())
        for b, r, i, j in itertools.product(range(3), range(4), range(2), range(3))
    ]
    assert found["nll"] == pytest.approx(-np.mean(of_labels), abs=1e-5)


def test_one_mask_is_as_far_with_any_number_of_samples():
    raters = torch.ones(1, 4, 2, 2, dtype=torch.uint8)
    probs = torch.tensor([0.9, 0.1]).view(1, 1, 2, 1, 1).expand(1, 1, 2, 2, 2)
    found = lidc.scores(lambda _: probs, data_of(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), raters))
    assert [found[f"ged_{number}"] for number in lidc.SAMPLES] == [2.0] * 4
    assert found["dice"] == 0.0


def test_images_are_halved_by_means_and_masks_by_half_of_four_pixels():
    images = torch.zeros(1, 1, 128, 128, dtype=torch.uint8)
    images[0, 0, :2, :2] = torch.tensor([[10, 20], [30, 40]])
    masks = torch.zeros(1, 4, 128, 128, dtype=torch.uint8)
    masks[0, 0, 0, 0] = 1  # one of four
    masks[0, 1, 0, :2] = 1  # two of four
    small = lidc.halved(data_of(images, masks)).split("test")
    assert small.inputs.shape == (1, 1, 64, 64)
    assert int(small.inputs[0, 0, 0, 0]) == 25
    assert small.targets[0, :2, 0, 0].tolist() == [0, 1]


def test_dropout_stays_on_after_training_and_members_are_asked_in_turn():
    network = lidc.with_dropout(lidc.unet(0.125)).eval()
    dropped = [module for module in network.modules() if isinstance(module, torch.nn.Dropout)]
    assert len(dropped) == 5
    for module in dropped:
        module.train()
    probs = lidc.draws_of([network], 3)(torch.randn(1, 1, 32, 32))
    assert probs.shape == (3, 1, 2, 32, 32)
    assert not torch.equal(probs[0], probs[1])


def test_the_bound_of_the_probabilistic_network_is_cross_entropy_and_divergence():
    """With prior and posterior alike, at a width of nearly zero, what is left is the error at the prior's mean."""
    torch.manual_seed(0)
    network = lidc.ProbabilisticUNet(0.125).eval()
    for encoder in (network.prior, network.posterior):
        torch.nn.init.zeros_(encoder[-1].weight)
        with torch.no_grad():
            encoder[-1].bias.copy_(torch.tensor([0.5] * lidc.LATENT + [-7.0] * lidc.LATENT))
    images, masks = torch.randn(2, 1, 16, 16), torch.randint(2, (2, 16, 16))
    logits = network.logits(network.unet(images), torch.full((2, lidc.LATENT), 0.5))
    error = torch.nn.functional.cross_entropy(logits, masks, reduction="sum") / 2
    assert network.negative_bound(images, masks).item() == pytest.approx(error.item(), rel=1e-3)
    with torch.no_grad():
        network.posterior[-1].bias[: lidc.LATENT] += 0.001
    more = 0.5 * lidc.LATENT * (0.001 / math.exp(-7)) ** 2
    assert network.negative_bound(images, masks).item() == pytest.approx(error.item() + more, rel=1e-3)
