"""A small trained-looking network with all that a run knows of it, for tests of exported files."""

import numpy as np
import torch
from torch import nn

import nestling as nl
from nestling.reading.cut import make_cut

CLASSES = ["ant", "bee", "cat"]
DATA = {
    "name": "insects",
    "task": "classification",
    "as_bytes": True,
    "input_shape": [3, 6, 5],
    "classes": CLASSES,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.4],
}
CUT = {"0": 5, "3": 2}


def small_nested(last=3, seed=0, **options):
    """Convolutions with norms that have been used, and a linear layer."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(6 * 4 * 3, last),
    )
    module(torch.randn(20, 3, 6, 5))
    options = {"weights": None, "order": "uniform", "num_always": 1} | options
    return nl.nest(module, torch.randn(2, 3, 6, 5), sort="none", **options).eval()


def calibration(nested, cut=CUT, temperature=1.7):
    return nl.Calibration(temperature, {0.8: 0.6, 0.9: 0.65}, 40, "categorical", 0, make_cut(nested.groups, cut))


def pictures(number=4, seed=3):
    """Bytes (B, 3, 6, 5)."""
    return np.random.default_rng(seed).integers(0, 256, (number, 3, 6, 5), dtype=np.uint8)


def normalised(images):
    """What the network was trained on, computed step by step in double precision."""
    mean, std = (np.array(DATA[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    return torch.from_numpy((images.astype(np.float64) / 255 - mean) / std).float()
