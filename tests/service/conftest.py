"""A file of a small network at three widths, written once for all tests of the service."""

import logging
import warnings

import pytest


@pytest.fixture(scope="session")
def widths_file(tmp_path_factory):
    """An untrained network on grey images of 8 x 8 pixels, as ``export`` writes it."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    import torch
    from torch import nn

    import nestling as nl

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))
    with torch.no_grad():
        network[-1].weight.mul_(8)
    nested = nl.nest(network, torch.zeros(2, 1, 8, 8), num_blocks=4, num_always=1)
    data = {"name": "noise", "input_shape": [1, 8, 8], "mean": [0.5], "std": [0.3], "as_bytes": True}
    data |= {"task": None, "classes": list("abcde")}
    path = tmp_path_factory.mktemp("served") / "noise.onnx"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            nl.export(nested, path, widths=[0.25, 0.5, 1.0], data=data, likelihood="categorical")
    finally:
        logging.disable(logging.NOTSET)
    return path
