"""ExecuTorch's format: the same answers up to the limits of a file, its record, and what is refused."""

import numpy as np
import pytest
import torch
from exported_graphs import ABOUT, arrays_of, largest_gap, small_graph, written
from torch import Tensor, nn

import nestling as nl
from nestling.delivery.formats import FORMATS, Graph, Port
from nestling.delivery.formats import executorch as executorch_format

pytest.importorskip("executorch.runtime", reason="ExecuTorch is not installed")
FORMAT = FORMATS["executorch"]()


@pytest.fixture(scope="module")
def graph():
    return small_graph()


@pytest.fixture(scope="module")
def path(graph, tmp_path_factory):
    return written(FORMAT, graph, tmp_path_factory.mktemp("executorch"))


def test_answers_are_those_of_torch(graph, path):
    session = FORMAT.opened(path)
    assert session.about == ABOUT
    assert (session.inputs, session.outputs) == (("images", "scale"), ("probs", "hidden"))
    for batch, samples in ((1, 1), (2, 64), (16, 3), (64, 7)):
        assert largest_gap(session, graph, batch, samples) < 1e-6


def test_answers_stay_when_the_file_runs_again(graph, path):
    session = FORMAT.opened(path)
    first = session.run(arrays_of(graph, 3, 2))
    kept = {name: array.copy() for name, array in first.items()}
    session.run(arrays_of(graph, 5, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_what_is_too_large_or_of_another_kind_is_refused(graph, path):
    session = FORMAT.opened(path)
    with pytest.raises(nl.ArgumentError, match=r"images \(65, 3, 6, 5\).*at most images \(64, 3, 6, 5\)"):
        session.run(arrays_of(graph, 65, 2))
    with pytest.raises(nl.ArgumentError, match="dtypes"):
        session.run(arrays_of(graph, 2, 2) | {"scale": np.ones(2)})
    with pytest.raises(nl.ArgumentError, match="one array for each"):
        session.run({"scale": np.ones(2, np.float32)})


def test_a_file_that_refuses_its_limits_is_not_written(graph, tmp_path, monkeypatch):
    """Lowered with a batch of 2, a program refuses a batch of 64, though its range goes to 64."""
    monkeypatch.setattr(executorch_format, "_TRACED", 2)
    with pytest.raises(nl.ArgumentError, match=r"images \(64"):
        FORMAT.write(graph, tmp_path / "x.pte")


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


def test_an_operation_that_is_lacking_is_named(tmp_path):
    graph = Graph(Exponential(), (Port("x", torch.rand(2, 3, 3), {0: "batch"}),), ("y",), {})
    with pytest.raises(nl.TraceError, match=r"aten\.linalg_matrix_exp.*Export to ONNX"):
        FORMAT.write(graph, tmp_path / "x.pte")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no program", None])
def test_damaged_files_are_refused_in_one_line(path, tmp_path, content):
    (tmp_path / "x.pte").write_bytes(path.read_bytes()[:200] if content is None else content)
    with pytest.raises(nl.RunError, match=r"x\.pte: can't be opened by ExecuTorch") as caught:
        FORMAT.opened(tmp_path / "x.pte")
    assert "\n" not in str(caught.value)
