"""ResNeXt for CIFAR: 9 bottlenecks of 8 paths, a path being what the grouped convolution says it is."""

import pytest
import torch
from torch import nn

from nestling.models import ResNeXtCifar


def grouped(network: nn.Module) -> list[nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, nn.Conv2d) and module.groups > 1]


@pytest.mark.parametrize(("width", "base"), [(1.0, 64), (0.5, 32), (1.5, 96)])
def test_width_multiplies_the_paths_and_not_the_stream(width, base):
    with torch.device("meta"):
        network = ResNeXtCifar(width=width)
    assert [conv.groups for conv in grouped(network)] == [8] * 9
    assert [conv.out_channels // 8 for conv in grouped(network)] == [base] * 3 + [2 * base] * 3 + [4 * base] * 3
    assert [block.merge[0].out_channels for block in network.blocks] == [256] * 3 + [512] * 3 + [1024] * 3


def test_stream_multiplies_what_runs_between_the_bottlenecks():
    network = ResNeXtCifar(stream=0.25, base_width=2)
    assert [block.merge[0].out_channels for block in network.blocks] == [64] * 3 + [128] * 3 + [256] * 3
    assert [conv.out_channels // 8 for conv in grouped(network)] == [2] * 3 + [4] * 3 + [8] * 3
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_two_halvings_leave_eight_by_eight():
    network = ResNeXtCifar(base_width=1)
    assert network.blocks(network.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 1024, 8, 8)


def test_a_bottleneck_is_the_sum_of_its_paths():
    torch.manual_seed(0)
    block = ResNeXtCifar(cardinality=4, base_width=3).blocks[1].eval().double()
    for norm in (block.reduce[1], block.paths[1]):
        nn.init.uniform_(norm.bias)
    features = torch.randn(2, 256, 5, 5, dtype=torch.float64)
    hidden = block.paths(block.reduce(features))
    merge, norm = block.merge
    paths = zip(hidden.split(3, 1), merge.weight.split(3, 1), strict=True)
    summed = norm(sum(nn.functional.conv2d(part, kernel) for part, kernel in paths))
    torch.testing.assert_close(block(features), (features + summed).relu())


def test_silencing_the_reduced_channels_of_a_path_silences_its_output():
    torch.manual_seed(0)
    block = ResNeXtCifar(cardinality=4, base_width=3).blocks[1].eval()
    hidden = torch.randn(1, 12, 5, 5)
    hidden[:, 3:6] = 0
    silent = block.paths(hidden).flatten(2).abs().sum(-1)[0] == 0
    assert silent[3:6].all()
    assert not silent[[0, 1, 2, 6, 7, 8, 9, 10, 11]].all()
