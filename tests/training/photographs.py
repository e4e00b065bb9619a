"""A small task on real images: which of ten places of two photographs is a patch from?"""

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch.utils.data import TensorDataset

SIZE, STRIPE, COLUMN, NUM_COLUMNS = 16, 64, 128, 5
"""Pixels of a patch, of a stripe of rows, and of a column, of which each photograph has five: the classes."""


def patches(number, *, test=False, seed=0):
    """Patches with their places; those for testing come from every third stripe of rows, the others from the rest."""
    rng = np.random.default_rng(seed + 1000 * test)
    photographs = load_sample_images().images
    height = photographs[0].shape[0]
    tops = [top for stripe, top in enumerate(range(0, height - STRIPE, STRIPE)) if (stripe % 3 == 2) == test]
    places = rng.integers(2 * NUM_COLUMNS, size=number)
    images = []
    for place in places:
        photograph, column = photographs[place % 2], place // 2
        top = rng.choice(tops) + rng.integers(STRIPE - SIZE)
        left = COLUMN * column + rng.integers(COLUMN - SIZE)
        images.append(photograph[top : top + SIZE, left : left + SIZE])
    inputs = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return TensorDataset((inputs - 0.45) / 0.25, torch.from_numpy(places))
