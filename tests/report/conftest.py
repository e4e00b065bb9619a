"""Runs for the tests of pages: one with a curve and held-out classes, trained and searched once."""

import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from page_runs import FEW, QUICK
from PIL import Image

from nestling import commands
from nestling.pruning import Pruning
from nestling.search import Searching
from nestling.training import Recipe


@pytest.fixture(scope="session")
def quick_latency():
    """Latencies need not be exact in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def searched(tmp_path_factory, quick_latency) -> Path:
    """The folder of a run on digits, without 8 and 9, with its curve."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        commands.train("digits", "mlp", folder, FEW, QUICK, hold_out=(8, 9), model_options=["hidden=[24,16]"])
        commands.search(folder, "macs", Searching(num_points=5))
    return folder


@pytest.fixture(scope="session")
def page(searched) -> Path:
    """The page of that run."""
    commands.report([searched], limit=120, samples=2)
    return searched / "report.html"


@pytest.fixture(scope="session")
def pruned(tmp_path_factory, quick_latency) -> Path:
    """The folder of a pruning on digits."""
    folder = tmp_path_factory.mktemp("prunings") / "smaller"
    commands.prune(
        "digits",
        "mlp",
        folder,
        Pruning(method="sparse_vd"),
        Recipe(epochs=1, batch_size=64, samples=1, cuts=(1.0,)),
        model_options=["hidden=[24,16]"],
    )
    return folder


@pytest.fixture(scope="session")
def foreign(tmp_path_factory, quick_latency) -> Path:
    """The folder of a run whose classes, data and own name are made to be taken for HTML."""
    place = tmp_path_factory.mktemp("foreign")
    names = "<script>window.hacked=1", '"><img src=x onerror=window.hacked=1>'
    for number in range(40):
        image = place / "pets" / names[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 6 * number, np.uint8)).save(image)
    recipe = Recipe(epochs=1, batch_size=16, samples=1, cuts=(1.0,))
    run = place / "<b>run & co"
    commands.train(str(place / "pets"), "mlp", run, replace(FEW, weights="plain"), recipe)
    return run
