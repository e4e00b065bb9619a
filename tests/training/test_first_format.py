"""Run folders of the first format, written before groups were stored: they load for ever, and compute what they did."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_networks import norms_module, outputs_at
from test_saving import Attention

import nestling as nl
from nestling.commands import predict
from nestling.storage.files import read_tensors

FIRST = Path(__file__).with_name("first_format")
OUTPUTS = json.loads((FIRST / "outputs.json").read_text())
MODULES = {"mlp": lambda: None, "norms": norms_module, "attention": Attention}
TOLERANCE = 1e-5
"""The numbers are of float32, and other machines add in another order."""


def check_outputs(nested, name):
    noted = OUTPUTS[name]
    given = outputs_at(nested, torch.tensor(noted["inputs"]), noted["cuts"])
    for own, expected in zip(given, noted["outputs"], strict=True):
        torch.testing.assert_close(own, torch.tensor(expected), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODULES)
def test_a_network_of_the_first_format(name):
    _, record = read_tensors(FIRST / name / "model.safetensors")
    assert record.keys() == {"cuts", "network", "groups", "notes"}, "the folder is not of the first format any more"
    check_outputs(nl.load(FIRST / name, MODULES[name](seed=3) if name == "norms" else MODULES[name]()), name)


@pytest.mark.parametrize("name", ["mlp", "norms"])
def test_a_run_of_the_first_format(name):
    run = nl.open_run(FIRST / name, MODULES[name]())
    check_outputs(run.nested, name)
    assert [own.cut for own in run.calibrations] == [run.calibration(0.5).cut, run.calibration(1.0).cut]
    assert [line["epoch"] for line in run.log] == [1, 2]


@pytest.mark.parametrize("name", MODULES)
def test_a_network_of_the_first_format_is_saved_in_the_newest(name, tmp_path):
    nl.save(nl.load(FIRST / name, MODULES[name]()), tmp_path)
    check_outputs(nl.load(tmp_path, MODULES[name]()), name)


def test_predictions_of_a_run_of_the_first_format(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    assert "middle" in predict(FIRST / "mlp", tmp_path / "x.npy", 0.5, 2, 0.8)
