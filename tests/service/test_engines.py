"""Engines in torch and of a file say the same; options and files that can't be used are refused in one line."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nestling as nl
from nestling import commands
from nestling.errors import NestlingError
from nestling.prediction import Calibration
from nestling.reading import make_cut
from nestling.service import FileEngine, Serving, TorchEngine

sys.path.insert(0, str(Path(__file__).parent))

DATA = {
    "name": "noise",
    "input_shape": [3],
    "mean": [0.1] * 3,
    "std": [0.5] * 3,
    "as_bytes": False,
    "classes": ["a", "b"],
}


@pytest.fixture(scope="module")
def nested():
    torch.manual_seed(0)
    net = nl.models.build("mlp", hidden=[8, 6], in_features=3, num_classes=2)
    return nl.nest(net, torch.zeros(2, 3), num_blocks=2, num_always=1, weights=None)


def test_torch_answers_as_predict_does(nested):
    fitted = Calibration(2.0, {0.9: 0.7}, 10, "categorical", 0, make_cut(nested.groups, 0.5))
    engine = TorchEngine(nested, [1.0, 0.5], DATA, likelihood="categorical", calibrations=[fitted])
    assert [width.kept for width in engine.widths] == [0.5, 1.0]
    assert [(port.name, port.dtype, port.shape) for port in engine.ports] == [("inputs", "float32", (3,))]
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    for width, cut, calibration in ((0, 0.5, fitted), (1, 1.0, None)):
        found = engine.answer(width, {"inputs": x})
        inputs = (torch.from_numpy(x) - 0.1) / 0.5
        expected = nl.predict(nested, inputs, cut=cut, samples=0, likelihood="categorical", calibration=calibration)
        np.testing.assert_allclose(found["probs"], expected.probs.numpy(), rtol=1e-5)
        np.testing.assert_allclose(found["entropy"], expected.entropy.numpy(), rtol=1e-4)
        assert ("in_set" in found) == (calibration is not None)
    assert np.array_equal(
        engine.answer(0, {"inputs": x})["in_set"], 1 - engine.answer(0, {"inputs": x})["probs"] <= 0.7
    )


def test_a_file_of_one_width_is_served_too(nested, tmp_path):
    pytest.importorskip("onnxscript")
    nl.export(nested, tmp_path / "half.onnx", cut=0.5, data=DATA, likelihood="categorical", compare=False)
    engine = FileEngine(tmp_path / "half.onnx")
    assert [(width.name, width.kept) for width in engine.widths] == [("0.5", 0.5)]
    x = np.ones((2, 3), np.float32)
    in_torch = TorchEngine(nested, [0.5], DATA, likelihood="categorical").run(0, {"inputs": x})
    (name,) = engine.zeros(1)
    np.testing.assert_allclose(engine.run(0, {name: x})["probs"], in_torch["probs"], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"target_ms": 0.0}, "target_ms"),
        ({"max_batch": 0}, "max_batch"),
        ({"queue": 3, "max_batch": 4}, "queue"),
        ({"collect_ms": -1.0}, "collect_ms"),
        ({"threads": -1}, "threads"),
        ({"receive_seconds": float("nan")}, "receive_seconds"),
    ],
)
def test_options_are_checked(given, names):
    with pytest.raises(NestlingError, match=f"^{names}"):
        Serving(**given)


@pytest.mark.parametrize("text", ["", "two words", "caf\u00e9"])
def test_a_token_is_one_word(tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(NestlingError, match="has no token"):
        commands.serve(tmp_path / "network.onnx", token_file=tmp_path / "token")


def test_what_is_no_network_is_refused(tmp_path):
    for name in ("missing.onnx", "network.txt", ""):
        with pytest.raises(NestlingError):
            commands.serve(tmp_path / name)


def test_a_port_that_is_taken_is_refused(widths_file):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NestlingError, match="host and port"):
        commands.serve(widths_file, port=taken.getsockname()[1])
