"""The number of parameters of every network at full width, against the literature or a formula written out here."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from nestling import models


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def built(name: str, **options: object) -> nn.Module:
    with torch.device("meta"):
        return models.build(name, **options)


def dense_count(*sizes: int) -> int:
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))


def vgg_count(plan: list[int], hidden: int, num_classes: int) -> int:
    """3x3 kernels, two norm parameters a channel, a dense layer with norm and no bias, a classifier with bias."""
    kernels = sum(9 * fan_in * fan_out for fan_in, fan_out in pairwise([3, *plan]))
    return kernels + 2 * sum(plan) + plan[-1] * hidden + 2 * hidden + (hidden + 1) * num_classes


def resnext_bottleneck_count(fan_in: int, fan_out: int, paths: int, path_width: int) -> int:
    """A bottleneck as the sum of its separate paths, norms, and a projection where the sizes differ."""
    path = fan_in * path_width + 9 * path_width**2 + path_width * fan_out + 4 * path_width
    projection = fan_in * fan_out + 2 * fan_out if fan_in != fan_out else 0
    return paths * path + 2 * fan_out + projection


def unet_count(in_channels: int, sizes: list[int], out_channels: int) -> int:
    def level(fan_in: int, fan_out: int) -> int:
        return 9 * fan_in * fan_out + 9 * fan_out**2 + 4 * fan_out

    down = sum(level(fan_in, fan_out) for fan_in, fan_out in pairwise([in_channels, *sizes]))
    up = sum((4 * below + 1) * here + level(2 * here, here) for here, below in pairwise(sizes))
    return down + up + (sizes[0] + 1) * out_channels


VGG11_PLAN = [64, 128, 256, 256, 512, 512, 512, 512]
VGG16_PLAN = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6


@pytest.mark.parametrize(
    ("name", "literature"),
    [
        ("lenet_300_100", 266_610),  # Han et al. 2015: 267K
        ("lenet_5_caffe", 431_080),  # Han et al. 2015: 431K
        ("mobilenet_v2", 2_236_682),  # 3,504,872 of ImageNet with 10 instead of 1000 rows in the classifier
        ("resnext_cifar", 34_426_698),  # Xie et al. 2017, ResNeXt-29 8x64d: 34.4M
    ],
)
def test_counts_of_the_literature(name, literature):
    assert count(built(name)) == literature


def test_imagenet_classes_give_the_imagenet_count_of_mobilenet():
    assert count(built("mobilenet_v2", num_classes=1000)) == 3_504_872


def test_resnet20_with_projections_has_the_usual_count():
    with torch.device("meta"):
        assert count(models.ResNet(20)) == 272_474


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("mlp", dense_count(784, 512, 128, 10)),
        ("lenet_300_100", dense_count(784, 300, 100, 10)),
        ("lenet_500_300", dense_count(784, 500, 300, 10)),
        ("lenet_5_caffe", (25 + 1) * 20 + (25 * 20 + 1) * 50 + dense_count(800, 500, 10)),
        ("vgg11", vgg_count(VGG11_PLAN, 256, 10)),
        ("vgg16_like", vgg_count(VGG16_PLAN, 512, 10)),
        ("unet", unet_count(1, [32, 64, 128, 192], 1)),
    ],
)
def test_counts_by_formula(name, formula):
    assert count(built(name)) == formula


def test_count_of_resnext_by_formula():
    stem, total = (27 + 2) * 64, 0
    for fan_in, fan_out, path_width in ((64, 256, 64), (256, 512, 128), (512, 1024, 256)):
        total += resnext_bottleneck_count(fan_in, fan_out, 8, path_width)
        total += 2 * resnext_bottleneck_count(fan_out, fan_out, 8, path_width)
    assert count(built("resnext_cifar")) == stem + total + dense_count(1024, 10)


def test_count_of_resnet14_is_that_of_resnet20_less_a_block_per_stage():
    blocks = sum(2 * (9 * channels**2 + 2 * channels) for channels in (16, 32, 64))
    assert count(built("resnet14")) == 272_474 - blocks


def test_count_of_the_wide_vgg11_of_bn3():
    wide = [96, 192, 384, 384, 768, 768, 768, 768]
    assert count(built("vgg11", width=1.5, num_classes=100)) == vgg_count(wide, 256, 100)


def test_vgg11_without_its_dense_layer_has_the_count_of_the_peers_comparison():
    features = built("vgg11").features
    assert round((count(features) + dense_count(512, 10)) / 1e6, 2) == 9.23
