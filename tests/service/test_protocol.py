"""The Open Inference Protocol, as a client that others wrote speaks it, and as plain HTTP."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))
from served import Numbers, ask, images, served

client = pytest.importorskip("tritonclient.http")


@pytest.fixture(scope="module")
def address():
    # A busy machine must not make it narrower.
    with served(Numbers(thresholds={0.9: 0.6, 0.5: 0.3}), target_ms=60_000.0) as (address, _):
        yield address


@pytest.fixture
def triton(address):
    with client.InferenceServerClient(address) as triton:
        yield triton


def tensor(array, *, binary=True):
    own = client.InferInput("images", array.shape, "UINT8")
    own.set_data_from_numpy(array, binary_data=binary)
    return own


def test_health_and_metadata(triton):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("numbers")
    assert triton.is_model_ready("numbers", "1")
    assert not triton.is_model_ready("others")
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    about = triton.get_model_metadata("numbers")
    assert about["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 1, 4, 4]}]
    assert {row["name"]: (row["datatype"], row["shape"]) for row in about["outputs"]} == {
        "probs": ("FP32", [-1, 3]),
        "logits": ("FP32", [-1, 3]),
        "entropy": ("FP32", [-1]),
        "in_set": ("BOOL", [-1, 3]),
        "answered": ("BOOL", [-1]),
        "width": ("BYTES", [-1]),
    }


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("takes", [True, False])
def test_inference(triton, sends, takes):
    engine, x = Numbers(thresholds={0.9: 0.6}), images(5)
    wanted = [client.InferRequestedOutput(name, binary_data=takes) for name in ("probs", "in_set", "width")]
    found = triton.infer("numbers", [tensor(x, binary=sends)], outputs=wanted, request_id="7")
    expected = engine.answer(2, {"images": x})
    assert np.array_equal(found.as_numpy("probs"), expected["probs"])
    assert np.array_equal(found.as_numpy("in_set"), expected["in_set"])
    assert found.as_numpy("width").tolist() == [b"1" if takes else "1"] * 5
    answer = found.get_response()
    assert answer["id"] == "7"
    assert answer["model_name"] == "numbers"
    assert answer["parameters"]["width"] == "1"
    assert [row["name"] for row in answer["outputs"]] == ["probs", "in_set", "width"]


def test_all_outputs_if_none_is_asked_for(triton):
    found = triton.infer("numbers", [tensor(images(2))])
    names = ["probs", "logits", "entropy", "in_set", "answered", "width"]
    assert [row["name"] for row in found.get_response()["outputs"]] == names
    assert found.as_numpy("answered").tolist() == [True, True]
    probs = found.as_numpy("probs")
    assert np.allclose(found.as_numpy("entropy"), -(probs * np.log(probs)).sum(1), atol=1e-6)


@pytest.mark.parametrize(("given", "width"), [("0.25", 0), (0.5, 1), (1, 2), ("1", 2)])
def test_a_width_is_honoured(triton, given, width):
    x = images(3)
    found = triton.infer("numbers", [tensor(x)], parameters={"width": given})
    assert np.array_equal(found.as_numpy("probs"), Numbers().answer(width, {"images": x})["probs"])


def test_confidence_widens_for_what_is_unsure(triton):
    x, engine = images(12), Numbers()
    found = triton.infer("numbers", [tensor(x)], parameters={"confidence": 0.7})
    by_width = [engine.answer(width, {"images": x})["probs"] for width in range(3)]
    sure = np.stack([probs.max(1) >= 0.7 for probs in by_width[:2]] + [np.ones(12, bool)])
    ends = sure.argmax(0)
    assert len(set(ends.tolist())) == 3  # some of each
    assert np.array_equal(found.as_numpy("probs"), np.stack([by_width[end][row] for row, end in enumerate(ends)]))
    assert found.as_numpy("width").tolist() == [(b"0.25", b"0.5", b"1")[end] for end in ends]


def test_a_fitted_cascade():
    x, engine = images(12), Numbers()
    stages = [{"cut": {"all": 0}, "threshold": 0.6, "temperature": 0.5}]
    stages.append({"cut": {"all": 2}, "threshold": None, "temperature": 2.0})
    engine.about["cascade"] = {"stages": stages, "score": "entropy", "set_thresholds": {"0.9": 0.5}}
    with served(engine) as (address, _), client.InferenceServerClient(address) as triton:
        found = triton.infer("numbers", [tensor(x)], parameters={"confidence": True})
    logits = engine.run(0, {"images": x})["logits"].astype(np.float64) / 0.5
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    early = -(probs * np.log(probs)).sum(1) <= 0.6
    assert 0 < early.sum() < 12
    assert found.as_numpy("width").tolist() == [b"0.25" if own else b"1" for own in early]
    assert np.allclose(found.as_numpy("probs")[early], probs[early], atol=1e-6)
    late = np.exp(engine.run(2, {"images": x})["logits"] / 2)
    assert np.allclose(found.as_numpy("probs")[~early], (late / late.sum(1, keepdims=True))[~early], atol=1e-6)


def unsure():
    """An engine with a fitted cascade of the narrowest and the widest width, which ends in "I don't know"."""
    engine = Numbers()
    stages = [{"cut": {"all": 0}, "threshold": 0.6, "temperature": 0.5}]
    stages.append({"cut": {"all": 2}, "threshold": 0.8, "temperature": 2.0})
    engine.about["cascade"] = {"stages": stages, "score": "entropy", "set_thresholds": {"0.9": 0.5}}
    return engine


def known_by_hand(engine, x):
    """Whether the first and the second stage know the answer, and the probabilities of both."""
    stages = []
    for width, temperature in ((0, 0.5), (2, 2.0)):
        powers = np.exp(engine.run(width, {"images": x})["logits"].astype(np.float64) / temperature)
        stages.append(powers / powers.sum(1, keepdims=True))
    first, second = (-(probs * np.log(probs)).sum(1) for probs in stages)
    return first <= 0.6, second <= 0.8, stages


def test_a_cascade_may_end_in_dont_know():
    x, engine = images(40), unsure()
    early, late, probs = known_by_hand(engine, x)
    answered = early | late
    assert early.sum() > 0
    assert 0 < (~answered).sum() < 40 - early.sum()
    with served(engine, max_batch=40) as (address, _), client.InferenceServerClient(address) as triton:
        found = triton.infer("numbers", [tensor(x)], parameters={"confidence": "fitted"})
        alone = triton.infer("numbers", [tensor(x)], parameters={"width": "1"})
        by_probability = triton.infer("numbers", [tensor(x)], parameters={"confidence": 0.999})
        counted = ask(address, "GET", "/metrics")[2].decode()
    assert found.as_numpy("answered").tolist() == answered.tolist()
    assert found.as_numpy("width").tolist() == [b"0.25" if own else b"1" for own in early]
    assert np.allclose(found.as_numpy("probs"), np.where(early[:, None], *probs), atol=1e-6)
    assert alone.as_numpy("answered").all()  # only a fitted cascade refuses
    assert by_probability.as_numpy("answered").all()
    assert f"nestling_unanswered_total {(~answered).sum()}\n" in counted


def test_people_are_told_that_it_does_not_know():
    x, engine = images(40), unsure()
    early, late, probs = known_by_hand(engine, x)
    doubtful, clear = int(np.flatnonzero(~(early | late))[0]), int(np.flatnonzero(late & ~early)[0])
    with served(engine) as (address, _):
        for row, known in ((doubtful, False), (clear, True)):
            content = io.BytesIO()
            Image.fromarray(x[row, 0]).save(content, "PNG")
            found = json.loads(ask(address, "POST", "/predict?confidence=fitted", content.getvalue())[2])
            best = int(probs[1][row].argmax())
            assert found["answered"] is known
            assert found["class"] == ("abc"[best] if known else None)
            assert (found["probability"] is None) is not known
            assert np.allclose(list(found["probabilities"].values()), probs[1][row], atol=1e-6)
        text = ask(address, "GET", "/")[2].decode()
    assert 'value="confidence=fitted"' in text


def test_a_budget_takes_the_widest_that_is_in_time():
    x = images(1)
    slow = Numbers(seconds=(0.0, 0.02, 0.3))  # far apart, since a busy machine adds to what is predicted
    with served(slow, max_batch=1) as (address, _), client.InferenceServerClient(address) as triton:
        for budget, name in ((60_000, "1"), (290, "0.5"), (1e-3, "0.25")):
            found = triton.infer("numbers", [tensor(x)], parameters={"budget_ms": budget})
            assert found.get_response()["parameters"]["width"] == name


def test_json_by_hand(address):
    x = images(2)
    row = {"name": "images", "shape": [2, 1, 4, 4], "datatype": "UINT8"}
    for data in (x.tolist(), x.ravel().tolist()):
        status, headers, body = ask(
            address, "POST", "/v2/models/numbers/infer", json.dumps({"inputs": [row | {"data": data}]})
        )
        assert status == 200
        assert headers["content-type"] == "application/json"
        outputs = {entry["name"]: entry for entry in json.loads(body)["outputs"]}
        probs = np.array(outputs["probs"]["data"], np.float32).reshape(outputs["probs"]["shape"])
        assert np.array_equal(probs, Numbers().answer(2, {"images": x})["probs"])


def test_the_description_s_own_example_is_answered(address):
    about = json.loads(ask(address, "GET", "/openapi.json")[2])
    path = about["paths"]["/v2/models/{name}/infer"]
    body = path["post"]["requestBody"]["content"]["application/json"]["example"]
    (name,) = path["parameters"][0]["schema"]["enum"]
    status, _, answer = ask(address, "POST", f"/v2/models/{name}/infer", json.dumps(body))
    assert status == 200
    known = about["components"]["schemas"]["Answer"]["properties"]["outputs"]["items"]["properties"]["name"]["enum"]
    assert [entry["name"] for entry in json.loads(answer)["outputs"]] == known


def test_the_description_lets_a_request_wish_one_thing(address):
    about = json.loads(ask(address, "GET", "/openapi.json")[2])
    (wish,) = about["paths"]["/predict"]["post"]["parameters"]
    assert wish["schema"]["maxProperties"] == 1
    names = set(wish["schema"]["properties"])
    assert names == {"width", "budget_ms", "confidence"}
    never = about["components"]["schemas"]["Inference"]["properties"]["parameters"]["not"]["anyOf"]
    assert {frozenset(pair["required"]) for pair in never} == {frozenset(names - {name}) for name in names}


def test_an_answer_that_is_not_finite_is_refused(address):
    class Infinite(Numbers):
        def run(self, width, inputs):
            found = super().run(width, inputs)
            return found | {"logits": np.where(inputs["images"].max() == 255, np.inf, found["logits"])}

    x = np.full((1, 1, 4, 4), 255, np.uint8)
    with served(Infinite()) as (address, _), client.InferenceServerClient(address) as triton:
        with pytest.raises(client.InferenceServerException, match="not finite") as raised:
            triton.infer("numbers", [tensor(x)])
        assert raised.value.status() == "400"


def test_a_failure_is_one_request_s(address):
    class Failing(Numbers):
        def run(self, width, inputs):
            if inputs["images"].max() == 255:
                raise RuntimeError("no")
            return super().run(width, inputs)

    with served(Failing()) as (address, _):
        row = {"name": "images", "shape": [1, 1, 4, 4], "datatype": "UINT8"}
        for value, status in ((255, 500), (0, 200)):
            body = json.dumps({"inputs": [row | {"data": [value] * 16}]})
            assert ask(address, "POST", "/v2/models/numbers/infer", body)[0] == status
