"""Files opened with numpy and the runtime alone: answers, inputs of the wrong form, hostile files, and no torch."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import nestling as nl
from nestling.errors import ArgumentError, DtypeError, NestlingError, RunError, ShapeError
from nestling.runtime import Answers, Network, Session

sys.path.insert(0, str(Path(__file__).parents[1] / "delivery"))
from exported_networks import CLASSES, CUT, DATA, calibration, normalised, pictures, small_nested


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """A network and its file."""
    nested, path = small_nested(), tmp_path_factory.mktemp("file") / "bee.onnx"
    nl.export(nested, path, cut=CUT, data=DATA, calibration=calibration(nested), compare=False)
    return nested, path


def test_answers_are_those_of_predict(delivered):
    nested, path = delivered
    images = pictures(12)
    answers = nl.runtime.open(path).predict(images)
    p = nl.predict(nested, normalised(images), cut=CUT, samples=0, calibration=calibration(nested))
    assert np.allclose(answers.probs, p.probs, atol=1e-6)
    assert answers.labels.tolist() == p.labels.tolist()
    assert answers.names == [CLASSES[label] for label in p.labels]
    assert np.allclose(answers.confidence, p.confidence, atol=1e-6)
    assert np.allclose(answers.uncertainty["entropy"], p.entropy, atol=1e-5)
    for coverage in (0.8, 0.9):
        sets = [tuple(CLASSES[n] for n in row.nonzero().flatten()) for row in p.sets(coverage)]
        assert answers.sets(coverage) == sets
    assert len({len(names) for names in sets}) > 1


ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import numpy as np
import nestling as nl
answers = nl.runtime.open(sys.argv[1], threads=1).predict(np.load(sys.argv[2]))
np.save(sys.argv[3], answers.probs)
print(answers)
"""


def test_no_torch_is_needed(delivered, tmp_path):
    nested, path = delivered
    np.save(tmp_path / "x.npy", pictures(3))
    words = [sys.executable, "-c", ALONE, path, tmp_path / "x.npy", tmp_path / "y.npy"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    expected = nl.predict(nested, normalised(pictures(3)), cut=CUT, samples=0, calibration=calibration(nested))
    assert np.allclose(np.load(tmp_path / "y.npy"), expected.probs, atol=1e-6)
    header, _, *rows = shown.stdout.splitlines()
    assert header.split()[:3] == ["class", "probability", "entropy"]
    assert [row.split()[0] for row in rows] == [CLASSES[label] for label in expected.labels]


def test_one_example_may_come_without_a_batch(delivered):
    network = nl.runtime.open(delivered[1])
    (image,) = pictures(1)
    assert np.array_equal(network.predict(image).probs, network.predict(image[None]).probs)
    assert network.about["classes"] == CLASSES
    assert "50.0%" in repr(network)


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (np.zeros((2, 3, 5, 6), np.uint8), ShapeError, r"\(batch, 3, 6, 5\)"),
        (np.zeros((2, 6, 5), np.uint8), ShapeError, r"\(batch, 3, 6, 5\)"),
        (np.zeros((2, 3, 6, 5)), DtypeError, "float64.*uint8"),
        (np.full((2, 3, 6, 5), 300), DtypeError, "int64.*uint8"),
        ({"image": np.zeros((2, 3, 6, 5), np.uint8)}, ArgumentError, "each of images"),
    ],
)
def test_inputs_of_another_form_are_refused(delivered, inputs, error, said):
    with pytest.raises(error, match=said):
        nl.runtime.open(delivered[1]).predict(inputs)


def test_a_file_of_one_cut_has_no_other(delivered):
    path = delivered[1]
    assert len(nl.runtime.open(path, cut=CUT).predict(pictures(2))) == 2
    with pytest.raises(ArgumentError, match=r"cut: got 0\.25"):
        nl.runtime.open(path, cut=0.25)
    with pytest.raises(ArgumentError, match=r"coverage: got 0\.99"):
        nl.runtime.open(path).predict(pictures(2)).sets(0.99)


class Recorded(Session):
    """A runtime that keeps what it was given."""

    def __init__(self, **about):
        self.about = {"format": 1, "classes": [], **about}
        self.inputs, self.outputs = tuple(port["name"] for port in about["inputs"]), ("probs",)
        self.given = []

    def run(self, arrays):
        self.given.append(dict(arrays))
        return {"probs": np.eye(3, dtype=np.float32)[:, :2]}


IMAGES = {"name": "x", "dtype": "float32", "shape": ["batch", 4], "scale": 1}


def test_noise_is_made_from_a_seed():
    noise = {"name": "noise", "dtype": "float32", "shape": ["samples", "batch", 500], "fill": "normal"}
    session = Recorded(inputs=[IMAGES, noise], sizes={"samples": 6})
    network, x = Network(session), np.zeros((3, 4), np.float32)
    network.predict(x)
    network.predict(x)
    network.predict(x, seed=1)
    network.predict(x, samples=20)
    first, again, other, more = (given["noise"] for given in session.given)
    assert first.shape == (6, 3, 500)
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05
    assert more.shape == (20, 3, 500)
    assert abs(more.mean()) < 5 / math.sqrt(more.size)
    assert abs(more.std() - 1) < 5 / math.sqrt(more.size)
    session.given.clear()
    network.predict(x[:1])
    assert np.array_equal(session.given[0]["noise"], first[:, :1])


def test_bytes_are_scaled_for_a_file_that_takes_numbers():
    session = Recorded(inputs=[IMAGES])
    Network(session).predict(np.array([[0, 51, 255, 1]] * 3, np.uint8))
    assert np.allclose(session.given[0]["x"][0], [0, 0.2, 1, 1 / 255])
    session = Recorded(inputs=[{key: value for key, value in IMAGES.items() if key != "scale"}])
    with pytest.raises(DtypeError, match="uint8"):
        Network(session).predict(np.zeros((3, 4), np.uint8))


def test_a_call_chooses_its_cut_in_a_file_of_several():
    width = {"name": "width", "dtype": "uint8", "shape": ["width"], "fill": "zeros"}
    rows = [
        {"name": "0.25", "cut": {"0": 1}, "kept": 0.25, "sizes": {"width": 2}},
        {"name": "0.5, 0.6", "cut": {"0": 2}, "kept": 0.5, "sizes": {"width": 4}},
        {"name": "small", "cut": {"0": 4}, "kept": 1.0, "sizes": {"width": 8}},
    ]
    session = Recorded(inputs=[IMAGES, width], widths={"table": rows})
    network, x = Network(session), np.zeros((3, 4), np.float32)
    for cut in (None, 0.25, 0.6, {"0": 1}, "small"):
        network.predict(x, cut=cut)
    assert [len(given["width"]) for given in session.given] == [8, 2, 4, 2, 8]
    with pytest.raises(ArgumentError, match=r"0\.25, 0\.5, 0\.6, small"):
        network.predict(x, cut=0.75)
    with pytest.raises(ArgumentError, match="at which the file was opened"):
        Network(session, 0.5).predict(x, cut=0.25)


def test_masks_have_labels_and_no_names():
    probs = np.random.default_rng(0).dirichlet([1, 1], (2, 4, 4)).transpose(0, 3, 1, 2)
    answers = Answers({"probs": probs}, {"thresholds": {"0.9": 0.7}})
    assert np.array_equal(answers.labels, probs.argmax(1))
    assert np.array_equal(answers.in_set(0.9), 1 - probs <= 0.7)
    with pytest.raises(ArgumentError, match="For masks"):
        answers.sets(0.9)
    assert "probs (2, 2, 4, 4)" in repr(answers)


def test_numbers_have_an_interval():
    answers = Answers({"mean": np.ones((2, 1)), "std": np.full((2, 1), 0.5)}, {"thresholds": {"0.9": 1.6}})
    low, high = answers.interval(0.9)
    assert np.allclose([low, high], [np.full((2, 1), 0.2), np.full((2, 1), 1.8)])
    with pytest.raises(ArgumentError, match="one of mean, std"):
        _ = answers.probs


def adds(*, record=None, location=None):
    """A model that adds a weight to x, with a record, and with the weight in another file."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    if location is not None:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=location)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if record is not None:
        model.metadata_props.add(key="nestling", value=record)
    return model.SerializeToString()


RECORD = {"format": 1, "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}]}


def as_text(**changes):
    return json.dumps(RECORD | changes)


HOSTILE = {
    "empty": b"",
    "not onnx": b"GIF89a" * 100,
    "of others": adds(),
    "a record that is no JSON": adds(record="{"),
    "a record of lists": adds(record="[" * 100_000),
    "a record of another kind": adds(record="[]"),
    "a newer record": adds(record=as_text(format=2)),
    "a record without inputs": adds(record=as_text(inputs=[])),
    "inputs that are none": adds(record=as_text(inputs=["x"])),
    "sizes that are none": adds(record=as_text(inputs=[{"name": "x", "dtype": "float32", "shape": [True, 2.5]}])),
    "a type that is none": adds(record=as_text(inputs=[{"name": "x", "dtype": "object", "shape": [4]}])),
    "a huge size": adds(record=as_text(inputs=[{"name": "x", "dtype": "uint8", "shape": [2**40]}])),
    "classes that are none": adds(record=as_text(classes=[1, 2])),
    "thresholds of others": adds(record=as_text(thresholds={"nan": 1.0})),
    "widths of others": adds(record=as_text(widths={"table": [{"sizes": {"w": -1}}]})),
    "a weight in a file above": adds(record=as_text(), location="../secret"),
    "a weight in a file anywhere": adds(record=as_text(), location="/etc/hostname"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_foreign_and_hostile_files_are_refused_in_one_line(content, tmp_path):
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.onnx"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"a\.onnx") as raised:
        nl.runtime.open(path)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_of_another_program_with_a_record_is_run(tmp_path):
    (tmp_path / "a.onnx").write_bytes(adds(record=as_text()))
    answers = nl.runtime.open(tmp_path / "a.onnx").predict(np.zeros((2, 4), np.float32))
    assert answers["y"].tolist() == [[1, 2, 3, 4]] * 2


def test_cut_off_files_are_refused(delivered, tmp_path):
    content = delivered[1].read_bytes()
    for size in (10, len(content) // 2, len(content) - 1):
        (tmp_path / "a.onnx").write_bytes(content[:size])
        with pytest.raises(NestlingError, match=r"a\.onnx"):
            nl.runtime.open(tmp_path / "a.onnx")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("none.onnx", "pipe.onnx", "."):
        with pytest.raises(NestlingError):
            nl.runtime.open(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"ends in \.onnx"):
        nl.runtime.open(tmp_path / "a.exe")


def test_torch_s_threads_are_left_alone(delivered):
    before = torch.get_num_threads()
    nl.runtime.open(delivered[1], threads=2).predict(pictures(2))
    assert torch.get_num_threads() == before
