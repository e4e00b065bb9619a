"""What commands share: the names of devices and networks, and the batch size of scoring; this file imports no torch."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]

MODELS = (
    "mlp",
    "lenet_300_100",
    "lenet_500_300",
    "lenet_5_caffe",
    "vgg11",
    "vgg16_like",
    "mobilenet_v2",
    "resnext_cifar",
    "resnet14",
    "unet",
)
"""The names of the library's networks, for ``--help``; a test compares them with ``models.names()``."""

BATCH = 500
"""How many examples are scored or predicted at a time."""
