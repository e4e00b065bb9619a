"""Weights on nested levels in files: which bits each has, the same numbers, fewer bytes, and what is refused."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nestling as nl
from nestling.delivery.formats import FORMATS, Graph, Port
from nestling.delivery.int8 import to_int8
from nestling.delivery.packed_weights import to_packed, with_packed_weights
from nestling.running import Levels
from nestling.running.quantiser import levels as levels_of
from nestling.runtime import OnnxSession, OpenVINOSession

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


class OnLevels(nn.Module):
    """A convolution with a norm and linear layers on 1 to 4 pairs of levels, one of them over two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        sizes = (8 * 16, 40, 40, 40, 40)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.tokens, self.head = nn.Linear(10, 10, bias=False), nn.Linear(40, 4)
        for tensor in (self.norm.weight, self.norm.bias, self.norm.running_mean):
            nn.init.normal_(tensor)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        self.levels = {
            "convolution.weight": Levels(torch.tensor(2.3), 4),
            "tokens.weight": Levels(torch.tensor(1.1), 3),
        }
        for pairs in (1, 2, 3, 4):
            self.levels[f"layers.{pairs - 1}.weight"] = Levels(torch.tensor(2.0 + 0.1 * pairs), pairs)
        with torch.no_grad():
            for name, own in self.levels.items():
                table = torch.tensor(levels_of(own.num_pairs))
                weight = self.get_parameter(name)
                weight.copy_((-own.log_tau).exp() * table[torch.randint(len(table), weight.shape)])
            self.layers[1].weight[3] = 0  # a row without a level
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.convolution(images)).relu().flatten(1)
        for layer in self.layers:
            x = layer(x).relu()
        x = self.tokens(x.reshape(-1, 4, 10)).flatten(1)
        logits = self.head(x)
        return logits.softmax(1), logits


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return OnLevels()


@pytest.fixture(scope="module")
def path(module, tmp_path_factory):
    images = Port("images", torch.randn(2, 3, 6, 6), {0: "batch"})
    target = tmp_path_factory.mktemp("bits") / "net.onnx"
    return FORMATS["onnx"]().write(Graph(module, (images,), ("probs", "logits"), {"cut": {}}), target)[0]


def batches(size: int = 50) -> list[dict[str, np.ndarray]]:
    return [{"images": np.random.default_rng(1).standard_normal((size, 3, 6, 6)).astype(np.float32)}]


def test_every_weight_has_the_bits_of_its_levels(module, path, tmp_path):
    made = to_packed(path, tmp_path / "x.onnx", module.levels, batches(), activations="float32", least_agreement=1.0)
    computed = {0: 2, 1: 4, 2: 4, 3: 8}
    assert made.layers == {
        "convolution.weight": "stored in 8 bits, computed in float32",
        "tokens.weight": "computed with 4-bit weights",
        **{f"layers.{n}.weight": f"computed with {bits}-bit weights" for n, bits in computed.items()},
    }
    nodes = [node for node in onnx.load(made.file).graph.node if node.op_type == "MatMulNBits"]
    bits = [attribute.i for node in nodes for attribute in node.attribute if attribute.name == "bits"]
    assert bits == [2, 4, 4, 8, 4]
    assert made.bytes[1] < made.bytes[0] / 2
    assert OnnxSession(made.file).about["quantised"][0]["layers"] == made.layers


def test_the_numbers_are_the_same(module, path, tmp_path):
    """With activations in float32 only the order of sums differs; the weights are unpacked by hand too."""
    made = to_packed(path, tmp_path / "x.onnx", module.levels, batches(), activations="float32")
    for size in (1, 3, 64):
        (batch,) = batches(size)
        with torch.no_grad():
            expected = module(torch.from_numpy(batch["images"]))[1]
        np.testing.assert_allclose(OnnxSession(made.file).run(batch)["logits"], expected, rtol=1e-4, atol=1e-5)
    model = onnx.load(made.file)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    first = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    codes, scales = (arrays[name] for name in first.input[1:3])
    whole = [(codes >> shift & 3).astype(int) - 2 for shift in (0, 2, 4, 6)]
    weights = np.stack(whole, -1).reshape(*scales.shape, -1) * scales[..., None]
    assert np.array_equal(weights.reshape(40, 128), module.layers[0].weight.detach().numpy())


def test_a_convolution_keeps_its_weights_to_the_last_bit(module, path):
    """Its norm is folded into the weights, which then have a scale per channel."""
    before = onnx.load(path)
    after, _ = with_packed_weights(before, module.levels)
    (constant,) = (tensor for tensor in before.graph.initializer if tensor.name.endswith("convolution.weight"))
    folded = onnx.numpy_helper.to_array(constant)
    (node,) = (node for node in after.graph.node if node.op_type == "Conv")
    (times,) = (other for other in after.graph.node if node.input[1] in other.output)
    (cast,) = (other for other in after.graph.node if times.input[0] in other.output)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    assert arrays[cast.input[0]].dtype == np.int8
    assert np.array_equal(arrays[cast.input[0]].astype(np.float32) * arrays[times.input[1]], folded)
    assert constant.name not in arrays
    assert not np.array_equal(folded, module.convolution.weight.detach().numpy())


def test_activations_in_8_bits_are_near_in_both_runtimes(module, path, tmp_path):
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    made = to_packed(path, tmp_path / "x.onnx", module.levels, batches(), least_agreement=0.9)
    (batch,) = batches(20)
    with torch.no_grad():
        expected = module(torch.from_numpy(batch["images"]))[1].numpy()
    for session in (OnnxSession(made.file), OpenVINOSession(made.file)):
        gap = np.abs(session.run(batch)["logits"] - expected).max() / np.abs(expected).max()
        assert gap < 0.03
    assert 0 < made.agreement.largest["probs"] < 0.1


def test_convolutions_compute_in_8_bits_if_they_are_calibrated_afterwards(module, path, tmp_path):
    packed = to_packed(path, tmp_path / "packed.onnx", module.levels, batches(), least_agreement=0.9)
    made = to_int8(packed.file, tmp_path / "both.onnx", batches(), batches(), least_agreement=0.9)
    operations = [node.op_type for node in onnx.load(made.file).graph.node]
    assert operations.count("MatMulNBits") == 5
    assert list(made.layers.values()) == ["in int8", "in float32"]
    about = OnnxSession(made.file).about
    assert about["cut"] == {}
    assert [step["layers"] for step in about["quantised"]] == [packed.layers, made.layers]


def test_nested_bits_of_a_network_are_packed(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))
    nested = nl.nest(net, torch.randn(2, 3, 4, 4), kinds=("bit",), weights=None, order="uniform").eval()
    cut = nl.Cut((("3.bits", 2),))
    images = Port("images", torch.randn(2, 3, 4, 4), {0: "batch"})
    graph = Graph(nl.extract(nested, cut), (images,), ("output",), {})
    path = FORMATS["onnx"]().write(graph, tmp_path / "bits.onnx")[0]
    batch = {"images": np.random.default_rng(0).standard_normal((9, 3, 4, 4)).astype(np.float32)}
    made = to_packed(path, tmp_path / "packed.onnx", nested.levels_at(cut), [batch], activations="float32")
    assert made.layers == {"3.weight": "computed with 4-bit weights"}
    with torch.no_grad(), nested.at(cut):
        expected = nested(torch.from_numpy(batch["images"]))
    np.testing.assert_allclose(OnnxSession(made.file).run(batch)["output"], expected, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_on_levels_stay_and_are_named(module, path, tmp_path):
    levels = module.levels | {"head.weight": Levels(torch.tensor(1.0), 2)}
    _, report = with_packed_weights(onnx.load(path), levels)
    assert report["head.weight"] == "in float32, since they are not on levels in the file"
    with pytest.raises(nl.ArgumentError, match=r"levels: got head\.weight.*kinds=\('bit',\)"):
        to_packed(Path(path), tmp_path / "x.onnx", {"head.weight": levels["head.weight"]}, batches())
    assert list(tmp_path.iterdir()) == []
