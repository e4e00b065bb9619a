"""A run folder becomes an engine: a file of its widths where one can be written, else the network in torch."""

from importlib import import_module

import numpy as np
import pytest
import torch

import nestling as nl
from nestling.commands.served_run import engine_of
from nestling.errors import ArgumentError, RunError
from nestling.service import FileEngine, TorchEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    x = np.random.default_rng(0).integers(0, 256, (300, 1, 4, 4), dtype=np.uint8)
    np.savez(place / "mine.npz", x=x, y=(x.reshape(300, -1).mean(1) > 127).astype(np.int64))
    torch.manual_seed(0)
    nested = nl.nest(nl.models.build("mlp", hidden=[8], in_features=16, num_classes=2), torch.zeros(2, 1, 4, 4))
    recipe = nl.Recipe(epochs=1, batch_size=32, samples=1, cuts=(0.5, 1.0))
    nl.train(nested, place / "mine.npz", recipe, out=place / "run", quiet=True)
    return place / "run", x


def expected(folder, x, cut):
    """What the mean weights say of bytes, at the temperature that validation data give."""
    run = nl.open_run(folder)
    inputs = (torch.from_numpy(x) / 255 - run.data["mean"][0]) / run.data["std"][0]
    data = nl.data.load(folder.parent / "mine.npz")
    fitted = nl.calibrate(run.nested, data.batches("validation", 100), cut=cut, samples=0, likelihood="categorical")
    return nl.predict(run.nested, inputs, cut=cut, samples=0, likelihood="categorical", calibration=fitted).probs


def check(engine, folder, x):
    assert [width.kept for width in engine.widths] == [0.5, 1.0]
    (port,) = engine.ports
    for width, cut in enumerate((0.5, 1.0)):
        probs = engine.answer(width, {port.name: x[:6]})["probs"]
        np.testing.assert_allclose(probs, expected(folder, x[:6], cut).numpy(), rtol=1e-3, atol=1e-5)


def test_a_run_is_served_from_a_file(folder, capsys):
    pytest.importorskip("onnxscript")
    engine = engine_of(folder[0], None, trust=True)
    assert isinstance(engine, FileEngine)
    assert capsys.readouterr().out == ""
    check(engine, *folder)


def test_it_is_served_in_torch_where_no_file_can_be_written(folder, capsys, monkeypatch):
    def refuse(*_, **__):
        raise ArgumentError("network", "one", "another", "Nest it anew.")

    monkeypatch.setattr(import_module("nestling.commands.served_run"), "run_export", refuse)
    engine = engine_of(folder[0], None, trust=True)
    assert isinstance(engine, TorchEngine)
    assert "Served in torch, since no file can be written: network" in capsys.readouterr().out
    check(engine, *folder)


def test_it_is_served_in_torch_without_onnx(folder, capsys, monkeypatch):
    served_run = import_module("nestling.commands.served_run")
    monkeypatch.setattr(served_run, "find_spec", lambda name: None if name == "onnx" else object())
    assert isinstance(engine_of(folder[0], None, trust=True), TorchEngine)
    assert "since onnx is not installed" in capsys.readouterr().out


def test_a_run_of_loaders_is_refused(folder, tmp_path):
    rows = [(torch.zeros(4), torch.tensor(number % 2)) for number in range(8)]
    loader = torch.utils.data.DataLoader(rows, 4)
    nested = nl.nest(nl.models.build("mlp", hidden=[4], in_features=4, num_classes=2), torch.zeros(2, 4))
    nl.train(nested, (loader, loader), nl.Recipe(epochs=1, samples=1), out=tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match="loaders of yours"):
        engine_of(tmp_path / "run", None, trust=True)
