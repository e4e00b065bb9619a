"""OpenVINO's format: the same answers at every batch, the record, single precision, and what is refused."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from exported_graphs import ABOUT, arrays_of, largest_gap, small_graph, written
from torch import Tensor, nn

import nestling as nl
from nestling.delivery.formats import FORMATS, Graph, Port
from nestling.runtime import OpenVINOSession

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
FORMAT = FORMATS["openvino"]()


@pytest.fixture(scope="module")
def graph():
    return small_graph()


@pytest.fixture(scope="module")
def path(graph, tmp_path_factory):
    return written(FORMAT, graph, tmp_path_factory.mktemp("openvino"))


def test_answers_are_those_of_torch(graph, path):
    session = FORMAT.opened(path)
    assert session.about == ABOUT
    assert (session.inputs, session.outputs) == (("images", "scale"), ("probs", "hidden"))
    for batch, samples in ((1, 3), (2, 1), (64, 7)):
        assert largest_gap(session, graph, batch, samples) < 1e-6


def test_single_precision_is_kept(tmp_path):
    """1 + 2^-12 is 1 in bfloat16 and in float16; the weights and the inputs have such numbers."""
    layer = nn.Linear(64, 64, bias=False).eval()
    nn.init.constant_(layer.weight, 1 + 2**-12)
    graph = Graph(layer, (Port("x", torch.zeros(2, 64), {0: "batch"}),), ("y",), {})
    session = FORMAT.opened(written(FORMAT, graph, tmp_path))
    x = np.full((2, 64), 1 + 2**-12, dtype=np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], 64 * (1 + 2**-12) ** 2, rtol=1e-6)


@pytest.mark.parametrize("threads", [None, 1])
def test_fixed_shapes_are_kept(path, threads):
    session = OpenVINOSession(path, threads=threads)
    with pytest.raises(nl.ArgumentError, match=r"images \(2, 3, 7, 5\).*images \[\?,3,6,5\]"):
        session.run({"images": np.zeros((2, 3, 7, 5), np.uint8), "scale": np.ones(1, np.float32)})
    with pytest.raises(nl.ArgumentError, match="one array for each of images, scale"):
        session.run({"images": np.zeros((2, 3, 6, 5), np.uint8)})


def test_open_sizes_can_be_fixed_when_a_file_is_opened(tmp_path):
    """The record says which sizes of which inputs have the name."""
    graph = small_graph()
    inputs = [{"name": "images", "shape": ["batch", 3, 6, 5]}, {"name": "scale", "shape": ["samples"]}]
    path = written(FORMAT, replace(graph, about={"inputs": inputs}), tmp_path)
    session = OpenVINOSession(path, choose=lambda about: {"batch": len(about["inputs"])})
    assert largest_gap(session, graph, 2, 3) < 1e-6
    with pytest.raises(nl.ArgumentError, match=r"images \[2,3,6,5\], scale \[\?\]"):
        session.run(arrays_of(graph, 3, 3))


def test_threads_run_one_file_at_once(graph, path):
    session = FORMAT.opened(path)
    given = [arrays_of(graph, size, 2) for size in range(1, 9)]
    alone = [session.run(arrays) for arrays in given]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(session.run, given * 5))
    for number, answers in enumerate(together):
        for name, array in alone[number % len(given)].items():
            np.testing.assert_array_equal(answers[name], array)


OPENS = """
import sys
sys.modules["torch"] = None
import numpy as np
from nestling.runtime.openvino import OpenVINOSession
session = OpenVINOSession({path!r})
with np.load({arrays!r}) as arrays:
    answers = session.run(dict(arrays))
np.savez({answers!r}, **answers)
assert "openvino_telemetry" not in sys.modules
print(session.about["temperature"])
"""


def test_a_file_is_opened_without_torch_and_without_reports(graph, path, tmp_path):
    arrays, answers = tmp_path / "arrays.npz", tmp_path / "answers.npz"
    given = arrays_of(graph, 5, 2)
    np.savez(arrays, **given)
    code = OPENS.format(path=str(path), arrays=str(arrays), answers=str(answers))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("1.25\n", 0), done.stderr
    with np.load(answers) as found:
        for name, expected in FORMAT.opened(path).run(given).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-6)


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


def test_an_operation_that_is_lacking_is_named(tmp_path):
    graph = Graph(Exponential(), (Port("x", torch.rand(2, 3, 3), {0: "batch"}),), ("y",), {})
    with pytest.raises(nl.TraceError, match=r"aten\.linalg_matrix_exp.*Export to ONNX"):
        FORMAT.write(graph, tmp_path / "x.xml")
    assert list(tmp_path.iterdir()) == []


class FixedBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1)


def test_a_batch_that_is_not_open_is_refused(tmp_path):
    graph = Graph(FixedBatch(), (Port("x", torch.rand(2, 3), {0: "batch"}),), ("y",), {})
    with pytest.raises(nl.TraceError, match=r"open sizes \(batch\)"):
        FORMAT.write(graph, tmp_path / "x.xml")


@pytest.mark.parametrize("damage", ["cut xml", "cut bin", "no bin", "nothing", "foreign"])
def test_damaged_files_are_refused_in_one_line(path, tmp_path, damage):
    xml, weights = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    kept = {"cut xml": xml[: len(xml) // 2], "nothing": b"", "foreign": b"<html></html>"}.get(damage, xml)
    (tmp_path / "x.xml").write_bytes(kept)
    if damage != "no bin":
        (tmp_path / "x.bin").write_bytes(weights[:50] if damage == "cut bin" else weights)
    with pytest.raises(nl.RunError, match=r"x\.xml: can't be opened by OpenVINO") as caught:
        FORMAT.opened(tmp_path / "x.xml")
    assert "\n" not in str(caught.value)


def test_a_missing_runtime_is_named(monkeypatch):
    monkeypatch.setattr("nestling.delivery.formats.extras.find_spec", lambda name: None)
    with pytest.raises(nl.ArgumentError, match=r"pip install nestling\[openvino\]"):
        FORMAT.check_installed()


def test_a_record_is_read_whatever_it_holds(graph, tmp_path):
    about = {"text": "a\nb\t<\x01>]]>", "list": list(range(2000))}
    assert FORMAT.opened(written(FORMAT, replace(graph, about=about), tmp_path)).about == about


def test_a_file_of_several_widths_that_it_can_not_compile_is_refused_with_what_to_do(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=12), nn.ReLU(), nn.Conv2d(12, 4, 1))
    nested = nl.nest(net, torch.zeros(2, 3, 5, 5), weights=None, num_blocks=4, num_always=1).eval()
    about = nl.export(nested, tmp_path / "a.onnx", widths=[0.5, 1.0]).about
    sizes = about["widths"]["table"][0]["sizes"]
    with pytest.raises(nl.RunError, match=r"grouped convolution \(GroupConvolution\).*to='openvino'") as grouped:
        OpenVINOSession(tmp_path / "a.onnx", choose=lambda about: sizes)
    with pytest.raises(nl.RunError, match=r"several widths, and OpenVINO compiles one.*choose=") as several:
        OpenVINOSession(tmp_path / "a.onnx")
    assert not any("\n" in str(caught.value) for caught in (grouped, several))
