"""The U-Net: images of any allowed size, the skips, and what it says of a size it cannot halve."""

import pytest
import torch

from nestling.errors import ShapeError
from nestling.models import UNet


@pytest.mark.parametrize("sides", [(8, 8), (16, 40)])
def test_the_output_has_the_size_of_the_image(sides):
    network = UNet(in_channels=3, out_channels=2, width=0.1)
    assert network(torch.randn(2, 3, *sides)).shape == (2, 2, *sides)


def test_channels_of_the_levels():
    with torch.device("meta"):
        network = UNet(width=0.5)
    assert [level[0].out_channels for level in (*network.encoders, network.bottom)] == [16, 32, 64, 96]
    assert [level[0].in_channels for level in network.decoders] == [128, 64, 32]
    assert [level[0].out_channels for level in network.decoders] == [64, 32, 16]


def test_other_levels():
    assert UNet((4, 8))(torch.zeros(1, 1, 6, 6)).shape == (1, 1, 6, 6)


@pytest.mark.parametrize("sides", [(12, 16), (16, 30)])
def test_sides_that_cannot_be_halved_three_times_are_refused(sides):
    with pytest.raises(ShapeError, match="multiples of 8"):
        UNet(width=0.1)(torch.randn(2, 1, *sides))


def test_the_image_reaches_the_output_through_the_skips_alone():
    torch.manual_seed(0)
    network = UNet(width=0.2).eval()
    for up in network.ups:
        torch.nn.init.zeros_(up.weight)
    images = torch.randn(1, 1, 16, 16, requires_grad=True)
    network(images)[0, 0, 8, 8].backward()
    reached = images.grad[0, 0].nonzero()
    # Four 3x3 convolutions at full resolution see four pixels to each side.
    assert reached.min() == 4
    assert reached.max() == 12
