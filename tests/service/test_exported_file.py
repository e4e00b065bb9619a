"""An exported file served: hundreds of requests at once get the answers of a single one, and none is lost."""

import io
import json
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nestling as nl

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))
from served import ask, served, wait_until

from nestling.service import FileEngine

client = pytest.importorskip("tritonclient.http")


def noise(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 1, 8, 8)).astype(np.uint8)


def alone(path):
    """The answer for one example at a width, from the file itself without the service."""
    open_at = {name: nl.runtime.open(path, cut=name, threads=1) for name in ("0.25", "0.5", "1")}
    return lambda name, example: open_at[name].predict(example[None]).probs[0]


def test_many_requests_at_mixed_widths_are_those_of_a_single_one(widths_file):
    """Exactly: ONNX Runtime's results for an example do not depend on the batch it is in, nor do the service's own."""
    asked = [(("0.25", "0.5", "1")[number % 3], noise(1 + number % 4, number)) for number in range(400)]
    single = alone(widths_file)
    with served(FileEngine(widths_file, threads=1), collect_ms=5.0, queue=2000, target_ms=60_000.0) as (
        address,
        service,
    ):
        sizes = []
        run = service.intake.dispatcher.engine.run
        service.intake.dispatcher.engine.run = lambda width, inputs: (
            sizes.append(len(inputs["images"])) or run(width, inputs)
        )
        with client.InferenceServerClient(address, concurrency=32, connection_timeout=60, network_timeout=60) as triton:
            pending = []
            for name, x in asked:
                tensor = client.InferInput("images", x.shape, "UINT8")
                tensor.set_data_from_numpy(x)
                pending.append(triton.async_infer("numbers", [tensor], parameters={"width": name}))
            found = [own.get_result() for own in pending]
    assert max(sizes) > 8  # they did share batches
    for (name, x), own in zip(asked, found, strict=True):
        assert own.get_response()["parameters"]["width"] == name
        assert np.array_equal(own.as_numpy("probs"), np.stack([single(name, example) for example in x]))


def test_the_command_serves_a_file_without_torch_and_stops_in_order(widths_file):
    """SIGTERM under load: what was taken is answered, what comes later is refused, and the exit status is 0."""
    code = "import sys, nestling.cli as c; c.main(); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "serve", str(widths_file), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            check_stop_under_load(process)
        finally:
            process.kill()


def check_stop_under_load(process):
    line = process.stdout.readline()
    assert "'noise' at widths 0.25, 0.5, 1 (onnx file)" in line, (line, process.stderr.read())
    address, statuses, lost = line.split("/")[2], [], []
    row = {"name": "images", "shape": [1, 1, 8, 8], "datatype": "UINT8", "data": noise(1, 0).ravel().tolist()}
    body = json.dumps({"inputs": [row]})

    def load():
        """Send requests, one after the other, until nobody listens any more."""
        while True:
            connection = HTTPConnection(address, timeout=20)
            try:
                connection.connect()
                connection.request("POST", "/v2/models/noise/infer", body)
                statuses.append(connection.getresponse().status)
            except ConnectionRefusedError:
                return
            except ConnectionResetError as error:  # connected as the port was closed, and never accepted
                lost.append(error)
            finally:
                connection.close()

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) >= 100, 60.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 503}
    assert len(lost) <= len(threads)
    assert process.stdout.read() == "Stopped: what was taken is answered.\nFalse\n"
    assert process.stderr.read() == ""


def test_predict_takes_any_image(widths_file):
    content = io.BytesIO()
    Image.fromarray(noise(1, 3)[0, 0]).convert("RGBA").save(content, "PNG")
    expected = alone(widths_file)("1", noise(1, 3)[0])
    with served(FileEngine(widths_file)) as (address, _):
        found = json.loads(ask(address, "POST", "/predict", content.getvalue())[2])
    assert found["probabilities"] == dict(zip("abcde", expected.tolist(), strict=True))
