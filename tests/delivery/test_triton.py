"""A model repository: its configurations by Triton's own schema, its models in onnxruntime, its cascade as in torch."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exported_networks import CLASSES, DATA, calibration, normalised, pictures, small_nested

import nestling as nl
from nestling.delivery import write_triton
from nestling.errors import ArgumentError, RunError
from nestling.runtime import OnnxSession

CUTS = (0.25, 1.0)


@pytest.fixture(scope="module")
def schema():
    """Triton's published ModelConfig, as its own client has it compiled."""
    client = importlib.util.find_spec("tritonclient")
    if client is None:
        pytest.skip("tritonclient is not installed")
    path = Path(client.origin).parent / "grpc" / "model_config_pb2.py"  # by itself: the client's package needs grpc
    spec = importlib.util.spec_from_file_location("triton_model_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(schema, text):
    from google.protobuf import text_format

    return text_format.Parse(text, schema.ModelConfig())


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """A cascade, the files of its two widths, and their repository, of a run with a name that needs care."""
    folder = tmp_path_factory.mktemp("triton")
    nested = small_nested()
    data = [(normalised(pictures(300)), torch.arange(300) % 3)]
    casc = nl.cascade(nested, CUTS, data, goal="macs=1x", samples=0, score="entropy")
    first = replace(casc.stages[0], threshold=1.0, calibration=replace(casc.stages[0].calibration, temperature=0.1))
    alone = nl.predict(nested, normalised(pictures(200)), cut=0.25, samples=0, calibration=first.calibration)
    first = replace(first, threshold=float(alone.entropy.median()))
    casc = replace(casc, stages=(first, casc.stages[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
        files = [
            nl.export(nested, folder / f"{cut}.onnx", cut=cut, data=DATA, calibration=own, compare=False).files[0]
            for cut, own in ((0.25, None), (1.0, calibration(nested, cut=1.0)))
        ]
    return casc, files, write_triton(files, folder / "models", name='a"b c/../é', cascade=casc)


def test_a_repository_has_a_folder_per_model(delivered):
    _, files, place = delivered
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    widths = {
        f"a_b_c_{name}/{file}" for name in ("0_25", "1") for file in ("1/model.onnx", "config.pbtxt", "labels.txt")
    }
    assert found == widths | {f"a_b_c_cascade/{file}" for file in ("1/model.py", "config.pbtxt", "labels.txt")}
    assert (place / "a_b_c_1/1/model.onnx").read_bytes() == files[1].read_bytes()
    assert (place / "a_b_c_1/labels.txt").read_text().split() == CLASSES
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(".")] == []


def test_configurations_are_those_of_the_published_schema(delivered, schema):
    """Every name, type and size against the file that onnxruntime opens."""
    place = delivered[2]
    types = {"tensor(uint8)": "TYPE_UINT8", "tensor(float)": "TYPE_FP32"}
    for name in ("a_b_c_0_25", "a_b_c_1"):
        config = parsed(schema, (place / name / "config.pbtxt").read_text())
        session = OnnxSession(place / name / "1" / "model.onnx")._session
        assert (config.name, config.backend, config.max_batch_size) == (name, "onnxruntime", 64)
        assert config.HasField("dynamic_batching")
        for ports, tensors in ((session.get_inputs(), config.input), (session.get_outputs(), config.output)):
            assert [tensor.name for tensor in tensors] == [port.name for port in ports]
            assert [schema.DataType.Name(own.data_type) for own in tensors] == [types[port.type] for port in ports]
            assert [list(own.dims) for own in tensors] == [list(port.shape[1:]) for port in ports]
        assert config.output[0].label_filename == "labels.txt"
    config = parsed(schema, (place / "a_b_c_cascade/config.pbtxt").read_text())
    assert (config.name, config.backend) == ("a_b_c_cascade", "python")
    assert [own.name for own in config.output] == ["probs", "logits", "stage", "answered"]
    stages = json.loads(config.parameters["cascade"].string_value)["stages"]
    assert [stage["model"] for stage in stages] == ["a_b_c_0_25", "a_b_c_1"]


def test_the_schema_refuses_what_it_does_not_have(schema):
    """So the test above can fail."""
    from google.protobuf import text_format

    for text in ('nmae: "a"', "input { data_type: TYPE_FLOAT }", "max_batch_size: many"):
        with pytest.raises(text_format.ParseError):
            parsed(schema, text)


class FakeTriton:
    """The names of triton_python_backend_utils that a model uses, over the files of a repository in onnxruntime."""

    TRITONSERVER_MEMORY_CPU = 0
    TritonError = TritonModelException = type("TritonModelException", (Exception,), {})

    def __init__(self, place):
        self.asked = []
        self.InferenceRequest = lambda **options: SimpleNamespace(**options, exec=lambda: self._run(place, **options))

    def _run(self, place, *, model_name, requested_output_names, inputs, preferred_memory):
        self.asked.append((model_name, len(inputs[0].as_numpy())))
        if not (place / model_name).exists():
            error = SimpleNamespace(message=lambda: f"no model {model_name}")
            return SimpleNamespace(has_error=lambda: True, error=lambda: error)
        outputs = OnnxSession(place / model_name / "1/model.onnx").run({own.name: own.as_numpy() for own in inputs})
        return SimpleNamespace(
            has_error=lambda: False, outputs={name: outputs[name] for name in requested_output_names}
        )

    @staticmethod
    def Tensor(name, array):
        return SimpleNamespace(name=name, as_numpy=lambda: array)

    @staticmethod
    def PreferredMemory(kind, device):
        return kind, device

    def get_output_tensor_by_name(self, response, name):
        return self.Tensor(name, response.outputs[name])

    @staticmethod
    def get_input_tensor_by_name(request, name):
        return request[name]

    @staticmethod
    def InferenceResponse(output_tensors, error=None):
        return SimpleNamespace(outputs={own.name: own.as_numpy() for own in output_tensors}, error=error)


def model_of(place, schema, monkeypatch, files):
    """The cascade's model.py of a repository, started as Triton starts it."""
    from google.protobuf import json_format

    fake = FakeTriton(files)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    spec = importlib.util.spec_from_file_location("model", place / "1/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = parsed(schema, (place / "config.pbtxt").read_text())
    model = module.TritonPythonModel()
    model.initialize({"model_config": json_format.MessageToJson(config, preserving_proto_field_name=True)})
    return model, fake


def test_the_cascade_calls_the_models_and_answers_as_in_torch(delivered, schema, monkeypatch):
    casc, _, place = delivered
    model, fake = model_of(place / "a_b_c_cascade", schema, monkeypatch, place)
    images = pictures(90, seed=8)
    parts = [images[:60], images[60:]]
    responses = model.execute([{"images": fake.Tensor("images", part)} for part in parts])
    assert [response.error for response in responses] == [None, None]
    found = {name: np.concatenate([own.outputs[name] for own in responses]) for name in responses[0].outputs}
    p = casc.predict(normalised(images))
    assert found["stage"][:, 0].tolist() == p.stages.tolist()
    assert 0 < float(p.stages.double().mean()) < 1
    assert np.allclose(found["probs"], p.probs, atol=1e-5)
    assert found["answered"].all()
    assert found["probs"].dtype == np.float32
    second = int((p.stages[:60] == 1).sum())
    assert fake.asked[:2] == [("a_b_c_0_25", 60), ("a_b_c_1", second)]


def test_an_error_of_a_model_is_an_error_of_its_request(delivered, schema, monkeypatch, tmp_path):
    model, fake = model_of(delivered[2] / "a_b_c_cascade", schema, monkeypatch, tmp_path)
    (response,) = model.execute([{"images": fake.Tensor("images", pictures(2))}])
    assert "no model a_b_c_0_25" in str(response.error)


def test_the_code_of_a_cascade_is_the_same_for_every_network(delivered):
    """Nothing of a network's strings is in it, and it imports numpy and Triton alone."""
    code = (delivered[2] / "a_b_c_cascade/1/model.py").read_bytes()
    assert (
        code == Path(sys.modules["nestling"].__file__).with_name("delivery").joinpath("triton_cascade.py").read_bytes()
    )
    assert set(re.findall(rb"^\s*(?:import|from) ([\w.]+)", code, re.MULTILINE)) == {
        b"json",
        b"collections.abc",
        b"typing",
        b"numpy",
        b"triton_python_backend_utils",
    }


def test_what_can_not_be_served_is_refused(delivered, tmp_path):
    casc, files, place = delivered
    with pytest.raises(RunError, match="is there already"):
        write_triton(files, place)
    with pytest.raises(ArgumentError, match="at least one file"):
        write_triton([], tmp_path / "models")
    with pytest.raises(ArgumentError, match=r"a file of the stage 0\.25 too"):
        write_triton(files[1:], tmp_path / "models", cascade=casc)
    with pytest.raises(ArgumentError, match="different cuts"):
        write_triton([files[0], copied(files[0], tmp_path / "again.onnx")], tmp_path / "models")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(RunError):
        write_triton([tmp_path / "bad.onnx"], tmp_path / "models")
    assert not (tmp_path / "models").exists()
    assert not list(tmp_path.glob(".models*"))


def copied(source, target):
    target.write_bytes(source.read_bytes())
    return target
