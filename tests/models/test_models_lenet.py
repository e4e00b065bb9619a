"""LeNet-5-Caffe: the sizes on the way, 20-50-800-500."""

import torch

from nestling.models import LeNet5Caffe


def test_sizes_on_the_way():
    network, images = LeNet5Caffe(), torch.zeros(2, 1, 28, 28)
    features = network.features(images)
    assert network.features[:3](images).shape == (2, 20, 12, 12)
    assert features.shape == (2, 50, 4, 4)
    assert features.flatten(1).shape == (2, 800)
    assert network.head[0](features.flatten(1)).shape == (2, 500)
