"""What ``export`` writes: answers in the user's terms, the record, nothing without a check, and errors in one line."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.delivery.about import Known
from nestling.delivery.formats import FORMATS, Graph, Port
from nestling.delivery.formats.onnx import OnnxFormat
from nestling.delivery.graphs import plain_graph
from nestling.delivery.source import as_known, source_of
from nestling.delivery.verify import verified
from nestling.errors import ArgumentError, NestlingError, RunError, ShapeError, TraceError
from nestling.prediction import Gaussian, HeteroscedasticGaussian
from nestling.runtime import OnnxSession, Session
from nestling.storage import tensors_digest

sys.path.insert(0, str(Path(__file__).parent))
from exported_networks import CLASSES, CUT, DATA, calibration, normalised, pictures, small_nested

X = torch.linspace(-2, 2, 12).view(3, 4)


@pytest.fixture(autouse=True)
def quick_latency(monkeypatch):
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)


def answers(path, **arrays):
    session = onnxruntime.InferenceSession(path)
    return dict(zip([port.name for port in session.get_outputs()], session.run(None, arrays), strict=True))


def close(found, expected):
    return np.abs(found - expected.numpy()).max() <= 1e-5 * float(expected.abs().max())


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """A network at a cut whose file takes bytes, and what export says of it."""
    nested, folder = small_nested(), tmp_path_factory.mktemp("file")
    made = nl.export(nested, folder / "bee.onnx", cut=CUT, data=DATA, calibration=calibration(nested), run="r1")
    return nested, made


def test_bytes_go_in_and_calibrated_probabilities_come_out(delivered):
    nested, made = delivered
    images = pictures(9)
    found = answers(made.files[0], images=images)
    expected = nl.predict(nested, normalised(images), cut=CUT, samples=0, calibration=calibration(nested))
    assert found["probs"].shape == (9, 3)
    assert close(found["probs"], expected.probs)
    with torch.no_grad(), nested.at(CUT):
        assert close(found["logits"], nested(normalised(images)))


def test_the_record_says_what_the_file_is(delivered):
    nested, made = delivered
    session = onnxruntime.InferenceSession(made.files[0])
    about = json.loads(session.get_modelmeta().custom_metadata_map["nestling"])
    assert about == made.about
    assert about["classes"] == CLASSES
    assert about["cut"] == CUT
    assert about["kept"] == 7 / 14
    assert about["temperature"] == 1.7
    assert about["thresholds"] == {"0.8": 0.6, "0.9": 0.65}
    assert about["calibrated_on"] == {"num_examples": 40, "samples": 0}
    assert about["inputs"] == [
        {"name": "images", "dtype": "uint8", "shape": ["batch", 3, 6, 5], "layout": "nchw", "scale": 255}
    ]
    assert about["outputs"] == ["probs", "logits"]
    assert (about["format"], about["nestling"], about["torch"]) == (1, nl.__version__, str(torch.__version__))
    assert (about["run"], about["likelihood"]) == ("r1", {"name": "categorical"})
    small = nl.extract(nested, CUT)
    assert about["weights"] == tensors_digest(small.state_dict().values())
    assert about["cost"]["params"] == sum(p.numel() for p in small.parameters())


def test_size_and_latency_stand_beside_the_whole_network_s(delivered):
    _, made = delivered
    assert made.bytes == made.files[0].stat().st_size
    whole_bytes, whole_latency = made.whole
    assert made.bytes < whole_bytes
    assert min(made.latency_ms, whole_latency) > 0
    assert str(made.files[0]) in repr(made)
    assert f"{whole_bytes:,}" in repr(made)
    assert sorted(made.files[0].parent.iterdir()) == [made.files[0]]


def test_a_file_is_the_same_each_time_and_names_no_place_of_this_machine(delivered, tmp_path):
    nested, made = delivered
    options = {"cut": CUT, "data": DATA, "calibration": calibration(nested), "run": "r1", "compare": False}
    again = nl.export(nested, tmp_path / "other.onnx", **options)
    content = again.files[0].read_bytes()
    assert content == made.files[0].read_bytes()
    assert str(Path(nl.__file__).parent).encode() not in content
    assert b".py" not in content


def test_channels_may_come_last_and_numbers_in_place_of_bytes(delivered, tmp_path):
    nested, made = delivered
    options = {"cut": CUT, "data": DATA, "compare": False, "layout": "nhwc", "as_bytes": False}
    images = pictures(2)
    nl.export(nested, tmp_path / "last.onnx", **options, calibration=calibration(nested))
    last = np.moveaxis(images, 1, -1).astype(np.float32) / 255
    found = answers(tmp_path / "last.onnx", images=last)["probs"]
    assert np.allclose(found, answers(made.files[0], images=images)["probs"], atol=1e-6)


def test_channels_that_come_last_lie_in_memory_as_the_network_has_them(tmp_path):
    convolution = nn.Conv2d(1, 3, 2)
    module = Code(lambda x: convolution(x).view(x.shape[0], -1))
    data = {"as_bytes": False, "input_shape": [1, 3, 4], "mean": [0.5], "std": [2.0]}
    nl.export(module, tmp_path / "a.onnx", torch.zeros(2, 1, 3, 4), data=data, layout="nhwc")
    x = torch.randn(3, 1, 3, 4)
    with torch.no_grad():
        expected = convolution((x - 0.5) / 2).flatten(1)
    assert close(answers(tmp_path / "a.onnx", images=x.movedim(1, -1).numpy())["output"], expected)


def test_exporting_changes_nothing(tmp_path):
    nested = small_nested(weights="gaussian").train()
    before = {name: tensor.clone() for name, tensor in nested.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.autocast("cpu", torch.bfloat16):
        made = nl.export(nested, tmp_path / "a.onnx", cut=0.5, compare=False)
        assert torch.is_autocast_enabled("cpu")
    assert all(torch.equal(tensor, before[name]) for name, tensor in nested.state_dict().items())
    assert nested.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        expected = nl.extract(nested, 0.5)(X.new_ones(1, 3, 6, 5))
    assert close(answers(made.files[0], input=np.ones((1, 3, 6, 5), np.float32))["output"], expected)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3, [5.0, -1.0], [2.0, 0.1]), HeteroscedasticGaussian(1.0, 2.0)])
def test_numbers_have_a_mean_and_a_standard_deviation_in_their_own_units(likelihood, tmp_path):
    nested = small_nested(last=likelihood.outputs_for(2))
    known = nl.Calibration(0.5, {0.9: 1.2}, 30, likelihood.name, 0, None)
    nl.export(nested, tmp_path / "a.onnx", likelihood=likelihood, calibration=known, compare=False)
    x = torch.randn(5, 3, 6, 5)
    expected = nl.predict(nested, x, samples=0, likelihood=likelihood, calibration=known)
    found = answers(tmp_path / "a.onnx", input=x.numpy())
    assert close(found["mean"], expected.mean)
    assert close(found["std"], expected.std)


class Calls(nn.Module):
    """Takes whole numbers and a mask by name, and returns a dictionary, as networks for text do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids, *, mask, scale=1.0):
        hidden = (self.embedding(ids) * mask.unsqueeze(-1)).sum(1)
        return {"logits": self.head(hidden) * scale, "hidden": hidden, "loss": None}


def test_a_plain_module_keeps_the_names_of_its_inputs_and_outputs(tmp_path):
    module = Calls()
    example = {"ids": torch.tensor([[1, 6, 2]]), "mask": torch.ones(1, 3), "scale": 2.0}
    made = nl.export(module, tmp_path / "a.onnx", example)
    ids, mask = torch.tensor([[0, 3, 5], [2, 2, 6]]), torch.tensor([[1.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
    found = answers(tmp_path / "a.onnx", ids=ids.numpy(), mask=mask.numpy())
    with torch.no_grad():
        expected = module(ids, mask=mask, scale=2.0)
    assert list(found) == ["logits", "hidden"]
    assert all(close(found[name], expected[name]) for name in found)
    assert (made.about["cut"], made.about["likelihood"], made.whole) == (None, None, None)


def test_quantised_weights_are_in_the_file(tmp_path):
    nested = small_nested(kinds=("channel", "bit"), num_blocks=4)
    cut = {"0": 3, "3.bits": 1}
    nl.export(nested, tmp_path / "a.onnx", cut=cut, compare=False)
    x = torch.randn(3, 3, 6, 5)
    with torch.no_grad(), nested.at(cut):
        expected = nested(x)
    assert close(answers(tmp_path / "a.onnx", input=x.numpy())["output"], expected)


def test_a_pruned_network_is_exported(tmp_path):
    module = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    targets = (X[:, 0] > 0).long()
    recipe = nl.Recipe(epochs=1, batch_size=3)
    pruned = nl.prune(module, X, (TensorDataset(X, targets),) * 2, method="log_normal", recipe=recipe, quiet=True)
    nl.export(pruned, tmp_path / "a.onnx")
    expected = nl.predict(pruned.network, X, samples=0).probs
    assert close(answers(tmp_path / "a.onnx", input=X.numpy())["probs"], expected)


class Code(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run, self.weight = run, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.run(x * self.weight)


REFUSED = {
    "random numbers": (lambda x: x + torch.randn_like(x), ArgumentError, "draws random numbers with aten.randn_like"),
    "dropout that stays on": (lambda x: F.dropout(x, 0.5, training=True), ArgumentError, "draws random numbers"),
    "an operation without a form": (torch.special.bessel_j0, ArgumentError, "one with .*bessel_j0"),
    "a size of its own": (lambda x: x.view(3, 4), TraceError, "can't run one example by itself"),
    "a size that is fixed": (lambda x: x.expand(max(len(x), 3), 4), TraceError, r"open sizes \(batch\)"),
    "a path by values": (lambda x: x if x.sum() > 0 else -x, TraceError, "test_export.py"),
}


@pytest.mark.parametrize(("run", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_no_file_can_hold_is_named(run, error, said, tmp_path):
    with pytest.raises(error, match=said) as raised:
        nl.export(Code(run), tmp_path / "a.onnx", X)
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


NUMBERS = {"as_bytes": False, "input_shape": [4], "mean": [0.0] * 4, "std": [1.0] * 4}
BAD = {
    "format": ({"to": "onyx"}, ArgumentError, "'onyx', but it must be one of onnx"),
    "suffix": ({"path": "a.pte"}, ArgumentError, "ends in .onnx"),
    "uncertainty": ({"uncertainty": "vibes"}, ArgumentError, "'vibes'"),
    "layout": ({"layout": "nwhc"}, ArgumentError, "'nwhc'"),
    "a layout of unknown inputs": ({"layout": "nhwc"}, ArgumentError, "not known to be images"),
    "bytes of unknown inputs": ({"as_bytes": True}, ArgumentError, "Pass data="),
    "bytes for numbers": ({"as_bytes": True, "data": NUMBERS}, ArgumentError, "trained on numbers"),
    "no example": ({"example": None}, ArgumentError, "example: got none"),
    "a cut of a plain module": ({"cut": 0.5}, ArgumentError, "Nest it to cut it"),
    "no module": ({"network": "vgg11"}, ArgumentError, "network: got a str"),
    "other data": ({"data": DATA}, ShapeError, r"\(3, 6, 5\)"),
    "a folder that is a file": ({"path": "file/a.onnx"}, RunError, "can't be made"),
}


@pytest.mark.parametrize(("change", "error", "said"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused_in_one_line(change, error, said, tmp_path):
    (tmp_path / "file").write_text("")
    given = {"network": nn.Linear(4, 2), "path": "a.onnx", "example": X} | change
    with pytest.raises(error, match=said) as raised:
        nl.export(given.pop("network"), tmp_path / given.pop("path"), given.pop("example"), **given)
    assert len(str(raised.value).splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_runtime_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("nestling.delivery.formats.extras.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"onnxruntime is not installed.*nestling\[onnx\]"):
        nl.export(nn.Linear(4, 2), tmp_path / "a.onnx", X)


class Careless(OnnxFormat):
    """A format that writes a weight which is slightly too large."""

    def write(self, graph, path):
        with torch.no_grad():
            weight = next(graph.module.parameters())
            weight.mul_(1.001)
            files = super().write(graph, path)
            weight.div_(1.001)
        return files


class Forgetful(OnnxFormat):
    """A format that keeps nothing of the record."""

    def opened(self, path):
        session = super().opened(path)
        session.about = {}
        return session


class Strange(OnnxFormat):
    """A format that writes an operation which no runtime has."""

    def write(self, graph, path):
        (path,) = super().write(graph, path)
        model = onnx.load(path)
        model.graph.node[-1].op_type = "Gemmm"
        onnx.save(model, path)
        return (path,)


WRONG = [(Careless, "differ from torch's"), (Forgetful, "record"), (Strange, "can't be opened by ONNX Runtime .*Gemmm")]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_a_file_that_is_wrong_never_takes_the_place_of_another(wrong, said, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "onnx", wrong)
    (tmp_path / "a.onnx").write_text("the file of yesterday")
    with pytest.raises(NestlingError, match=said):
        nl.export(nn.Linear(4, 2), tmp_path / "a.onnx", X)
    assert (tmp_path / "a.onnx").read_text() == "the file of yesterday"
    assert len(list(tmp_path.iterdir())) == 1


class Parts(nn.Module):
    """Uncertainty whose one part is nearly nothing beside the others, and so is mostly rounding."""

    def forward(self, x):
        entropy = x.square().sum(1) + 1
        return entropy, entropy * (1 - 1e-7), entropy - entropy * (1 - 1e-7)


class Rounded(Session):
    """Answers that are another rounding of the same."""

    def __init__(self, graph, error):
        self.about, self.inputs, self.outputs, self.error = {}, ("x",), graph.outputs, error

    def run(self, arrays):
        entropy, aleatoric, epistemic = (part.numpy() for part in Parts()(torch.from_numpy(arrays["x"])))
        return {"entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic + self.error * entropy.max()}


def test_parts_of_an_uncertainty_are_compared_on_its_scale():
    graph = Graph(Parts(), (Port("x", X, {0: "batch"}),), ("entropy", "aleatoric", "epistemic"), {})
    assert verified(graph, Rounded(graph, 1e-6)) < 1e-5
    with pytest.raises(NestlingError, match=r"by 0\.001"):
        verified(graph, Rounded(graph, 1e-3))


def test_a_file_is_run_at_each_number_of_examples(delivered):
    _, made = delivered
    session = OnnxSession(made.files[0])
    seen = []

    class Watching(OnnxSession):
        def __init__(self):
            self.about, self.inputs, self.outputs = session.about, session.inputs, session.outputs

        def run(self, arrays):
            seen.append(arrays["images"])
            return session.run(arrays)

    graph = graph_of(*delivered)
    assert verified(graph, Watching()) < 1e-5
    assert [len(images) for images in seen] == [1, 2, 64]
    assert all(images.std() > 60 for images in seen)  # any bytes, and not the example, which is zeros


def graph_of(nested, made):
    with torch.no_grad():
        known = as_known(nested, Known(DATA, None, calibration(nested), "r1"), CUT)
        return plain_graph(source_of(nested, None, CUT, known, "nchw", None))
