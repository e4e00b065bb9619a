"""What a small network's folder says of it, and what its network answers by that alone."""

import numpy as np
import pytest
import torch
from torch import nn

import nestling as nl
from nestling.delivery import data_record, save_small, small_record
from nestling.prediction import Categorical, Gaussian


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images whose bytes say nothing to a network that expects them normalised."""
    place = tmp_path_factory.mktemp("data") / "mine.npz"
    noise = np.random.default_rng(0)
    np.savez(place, x=noise.integers(90, 110, (80, 4, 4), dtype=np.uint8), y=np.arange(80) % 3)
    return nl.data.load(place)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


EXAMPLE = (torch.zeros(2, 1, 4, 4),), {}


def test_bytes_are_normalised_and_answers_calibrated(data, network, tmp_path):
    calibration = nl.Calibration(2.0, {0.9: 0.7}, 40, "categorical", 0, None)
    about = small_record(data_record(data), Categorical(), calibration, "name of the run")
    save_small(network, EXAMPLE, tmp_path, about | {"cut": {"1": 4}})
    small, test = nl.load_small(tmp_path), data.split("test")
    answer = small.predict(test.inputs, batch_size=7)
    with torch.no_grad():
        x = (test.inputs.float() / 255 - data.mean[0]) / data.std[0]
        expected = (network(x) / 2).softmax(1)
    torch.testing.assert_close(answer.probs, expected)
    assert torch.equal(answer.sets(0.9), 1 - expected <= 0.7)
    assert small.about["classes"] == list(data.classes)
    assert small.about["run"] == "name of the run"
    assert small.about["cut"] == {"1": 4}
    assert small.about["data"]["input_shape"] == [1, 4, 4]
    assert set(small.about["files"]) == {"network.json", "weights.safetensors"}
    assert {"nestling", "torch"} <= small.about.keys()


def test_numbers_come_in_their_own_units(data, network, tmp_path):
    likelihood = Gaussian(std=0.5, center=[1.0, 2.0, 3.0], scale=[10.0, 20.0, 30.0])
    save_small(network, EXAMPLE, tmp_path, small_record(data_record(data), likelihood))
    x = data.split("test").inputs
    found = nl.load_small(tmp_path).predict(x).mean
    normalised = (x.float() / 255 - data.mean[0]) / data.std[0]
    expected = nl.predict(network, normalised, samples=0, likelihood=likelihood).mean
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.zeros(2, 4, 4, dtype=torch.uint8), nl.ShapeError, r"must be \(N, 1, 4, 4\)"),
        (torch.zeros(2, 1, 4, 5), nl.ShapeError, r"must be \(N, 1, 4, 4\)"),
    ],
)
def test_inputs_of_another_shape(data, network, tmp_path, x, error, said):
    save_small(network, EXAMPLE, tmp_path, small_record(data_record(data)))
    with pytest.raises(error, match=said):
        nl.load_small(tmp_path).predict(x)


def test_what_is_not_known_is_said(data, network, tmp_path):
    small = save_small(network, EXAMPLE, tmp_path / "nothing", {})
    with pytest.raises(nl.RunError, match=r"does not say how inputs are normalised.*nl\.predict\(small"):
        small.predict(torch.zeros(2, 1, 4, 4))
    floats = small_record(data_record(data) | {"as_bytes": False})
    small = save_small(network, EXAMPLE, tmp_path / "floats", floats)
    assert small.predict(torch.zeros(2, 1, 4, 4)).probs.shape == (2, 3)
    with pytest.raises(nl.ArgumentError, match="floats on the scale of the training data"):
        small.predict(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))


def test_a_program_is_written_only_if_asked(data, network, tmp_path):
    save_small(network, EXAMPLE, tmp_path, {}, program=True)
    x = torch.randn(3, 1, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(tmp_path / "network.pt2").module()(x), network(x))
    save_small(network, EXAMPLE, tmp_path, {})
    assert {path.name for path in tmp_path.iterdir()} == {"network.json", "small.json", "weights.safetensors"}
