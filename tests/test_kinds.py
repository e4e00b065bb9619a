"""Every kind of block through the same commands: train, search, extract, and run what came out."""

import sys
from importlib import import_module

import numpy as np
import pytest
import torch

import nestling as nl
from nestling import commands
from nestling.network import Nesting
from nestling.search import Searching
from nestling.training import Recipe

NETWORKS = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=groups),
                nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1),
            )
            for _ in range(2)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def residual():
    return Residual(1)


def paths():
    return Residual(4)


def neurons():
    return nn.Sequential(nn.Flatten(), nn.Linear(25, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
"""

CASES = {
    ("neuron",): "neurons",
    ("channel",): "residual",
    ("path",): "paths",
    ("layer",): "residual",
    ("bit",): "residual",
    ("channel", "bit"): "residual",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "nets_of_kinds.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_of_kinds", raising=False)
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
    noise = np.random.default_rng(0)
    labels = np.arange(120) % 4
    images = noise.integers(0, 120, (120, 5, 5), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[(label // 2) * 3 :, :][:2, (label % 2) * 3 :][:, :2] += 120
    np.savez(tmp_path / "data.npz", x=images, y=labels)
    return tmp_path


@pytest.mark.parametrize(("kinds", "network"), CASES.items(), ids=map("+".join, CASES))
def test_a_kind_from_training_to_a_network_that_runs(place, kinds, network):
    nesting = Nesting(num_blocks=4, num_always=1, kinds=kinds, order="uniform", weights="plain")
    recipe = Recipe(epochs=1, batch_size=32, cuts=(1.0,), recalibration_batches=1)
    commands.train(str(place / "data.npz"), f"nets_of_kinds:{network}", place / "run", nesting, recipe)
    commands.search(place / "run", "bytes", Searching(strategy="beam", num_points=6), trust=True)
    curve = nl.Curve.read(place / "run" / "curve.json")
    assert curve.rows[0].cost < curve.rows[-1].cost
    most = int(curve.rows[0].cost)
    commands.extract(place / "run", under=[f"bytes={most}"], all_bits="bit" in kinds, out=place / "small", trust=True)
    nested = nl.open_run(place / "run", trust=True).nested
    assert {group.kind for group in nested.groups.free} == set(kinds)
    small = nl.load_small(place / "small")
    x = torch.randn(7, *nested.example[0][0].shape[1:])
    nested.statistics.clear()  # the norms that were collected are in the files alone
    with torch.no_grad():
        if not any("running_mean" in name for name, _ in small.named_buffers()):
            assert torch.allclose(small(x), nl.extract(nested, curve.rows[0].cut)(x), atol=1e-6)
    if "bit" not in kinds:
        assert sum(t.numel() * t.element_size() for t in small.state_dict().values()) == most
