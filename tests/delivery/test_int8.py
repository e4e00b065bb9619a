"""8-bit files: their layers, how far their answers are, what is refused, and what the record says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nestling as nl
from nestling.delivery.agreement import agreement_of
from nestling.delivery.formats import FORMATS, Graph, Port
from nestling.delivery.int8 import to_int8
from nestling.runtime import OnnxSession, OpenVINOSession, Session

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


class Normed(nn.Module):
    """Bytes are normalised; two convolutions with norms, one with a shortcut; two linear layers; probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.hidden, self.head = nn.Linear(16 * 16, 32), nn.Linear(32, 4)
        for norm in (self.norm, self.second_norm):
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.first((images.float() - 127) / 60)).relu()
        x = self.second_norm(self.second(x)).relu() + x
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        logits = 4 * self.head(self.hidden(x).relu())
        return logits.softmax(1), logits


def write_onnx(module: nn.Module, path: Path, about: dict[str, object]) -> Path:
    images = Port("images", torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {0: "batch"})
    return FORMATS["onnx"]().write(Graph(module, (images,), ("probs", "logits"), about), path)[0]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    module = Normed()
    with torch.no_grad():  # so that each class is the most probable one of some examples
        module.head.bias -= module(torch.from_numpy(batches(1, 0, 256)[0]["images"]))[1].mean(0) / 4
    return write_onnx(module, tmp_path_factory.mktemp("float") / "net.onnx", {"cut": {"0": 3}})


def batches(number: int, seed: int, size: int = 32) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"images": generator.integers(0, 256, (size, 3, 8, 8), dtype=np.uint8)} for _ in range(number)]


@pytest.fixture(scope="module")
def made(path, tmp_path_factory):
    target = tmp_path_factory.mktemp("int8") / "net.onnx"
    return to_int8(path, target, batches(4, 1), batches(8, 2), least_agreement=0.9)


def test_inner_layers_compute_in_8_bits(made):
    assert list(made.layers.values()) == ["in int8", "in int8", "in int8", "in float32"]
    nodes = onnx.load(made.file).graph.node
    made_by = {output: node for node in nodes for output in node.output}
    for node in nodes:
        if node.op_type in ("Conv", "Gemm"):
            inner = {made_by[name].op_type for name in node.input[:2] if name in made_by}
            assert (inner == {"DequantizeLinear"}) is (made.layers[node.name] == "in int8")
    assert not any(node.op_type == "BatchNormalization" for node in nodes)


def test_answers_are_near_and_the_report_says_how_near(path, made):
    """The differences are counted again here."""
    whole, small = OnnxSession(path), OnnxSession(made.file)
    gaps, same = {"probs": 0.0, "logits": 0.0}, []
    for batch in batches(8, 2):
        expected, found = whole.run(batch), small.run(batch)
        gaps = {name: max(gap, np.abs(expected[name] - found[name]).max()) for name, gap in gaps.items()}
        same += [*(expected["probs"].argmax(1) == found["probs"].argmax(1))]
    assert made.agreement.largest == pytest.approx(gaps)
    assert made.agreement.same_class == pytest.approx(np.mean(same))
    assert made.agreement.num_examples == 8 * 32
    assert set(whole.run(batches(1, 2, 256)[0])["probs"].argmax(1)) == {0, 1, 2, 3}
    assert 0 < made.agreement.largest["probs"] < 0.1
    assert made.bytes == (path.stat().st_size, made.file.stat().st_size)


def test_probabilities_are_not_rounded_to_8_bits(made):
    probs = OnnxSession(made.file).run(batches(1, 3, 256)[0])["probs"]
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert len(np.unique(probs)) > 256


def test_the_batch_stays_open_and_the_record_is_kept(made):
    session = OnnxSession(made.file)
    for size in (1, 2, 64):
        assert session.run(batches(1, 4, size)[0])["probs"].shape == (size, 4)
    assert session.about["cut"] == {"0": 3}
    assert session.about["quantised"][0]["agreement"]["same_class"] == made.agreement.same_class
    assert session.about["quantised"][0]["layers"] == made.layers


def test_openvino_reads_the_same_file(made):
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    found = agreement_of(OnnxSession(made.file), OpenVINOSession(made.file), batches(2, 5))
    assert found.largest["probs"] < 0.1  # its rounding differs
    assert OpenVINOSession(made.file).about["quantised"][0]["layers"] == made.layers


def test_too_little_agreement_is_refused_and_nothing_is_written(path, tmp_path):
    grey = [{"images": np.full((4, 3, 8, 8), 127, np.uint8)}]  # ranges of other data than those held out
    with pytest.raises(nl.NestlingError, match=r"only \d.*256 held-out examples keep their class, and 99\.9% must"):
        to_int8(path, tmp_path / "x.onnx", grey, batches(8, 2), least_agreement=0.999)
    assert list(tmp_path.iterdir()) == []


def test_no_examples_are_refused(path, tmp_path):
    with pytest.raises(nl.ArgumentError, match="calibration: got no batch"):
        to_int8(path, tmp_path / "x.onnx", [], batches(1, 2))
    with pytest.raises(nl.ArgumentError, match="held_out: got no batch"):
        to_int8(path, tmp_path / "x.onnx", batches(1, 1), [])
    assert list(tmp_path.iterdir()) == []


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(images.float().flatten(1))
        return logits.softmax(1), logits


def test_a_file_without_inner_layers_is_refused(tmp_path):
    path = write_onnx(OneLayer().eval(), tmp_path / "one.onnx", {})
    with pytest.raises(nl.ArgumentError, match="a file of 1 layers, of which none is followed by another"):
        to_int8(path, tmp_path / "x.onnx", batches(1, 1), batches(1, 2))


class Fixed(Session):
    """Gives the same outputs whatever it is given."""

    def __init__(self, **outputs: np.ndarray) -> None:
        self.given = outputs

    def run(self, arrays):
        return self.given


def test_agreement_counts_pixels_of_masks_and_refuses_nan():
    one, two = np.zeros((2, 3, 4, 4), np.float32), np.zeros((2, 3, 4, 4), np.float32)
    one[:, 0] = two[:, 0] = 1
    two[0, 1, :2] = 2
    found = agreement_of(Fixed(probs=one), Fixed(probs=two), [{"x": np.zeros(2)}])
    assert (found.same_class, found.largest, found.num_examples) == (0.75, {"probs": 2.0}, 2)
    assert agreement_of(Fixed(mean=one), Fixed(mean=one), [{"x": np.zeros(2)}]).same_class is None
    with pytest.raises(nl.NonFiniteError, match="mean"):
        agreement_of(Fixed(mean=one), Fixed(mean=one * np.nan), [{"x": np.zeros(2)}])
