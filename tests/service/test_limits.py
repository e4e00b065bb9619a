"""What a service refuses, and how: queues, bodies, pixels, slow senders, tokens, and requests while it stops."""

import io
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))
from served import Numbers, ask, images, served, wait_until

INFER = "/v2/models/numbers/infer"


def infer_body(x, **parameters):
    row = {"name": "images", "shape": list(x.shape), "datatype": "UINT8", "data": x.ravel().tolist()}
    return json.dumps({"inputs": [row], "parameters": parameters})


def png(array):
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG")
    return content.getvalue()


def bomb(side=30_000):
    """A PNG file of a few hundred bytes that says it has many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def address():
    with served(Numbers(thresholds={0.9: 0.6}), max_body=20_000, max_pixels=10_000, receive_seconds=0.5) as (
        address,
        _,
    ):
        yield address


def error_of(found, status):
    assert found[0] == status, found
    (line,) = json.loads(found[2]).values()
    assert line
    assert "\n" not in line
    return line


def test_beyond_the_queue_there_is_429():
    with served(queue=4, max_batch=2) as (address, service):
        service.intake.dispatcher.engine.pause = 0.1
        with ThreadPoolExecutor(24) as pool:
            found = list(pool.map(lambda _: ask(address, "POST", INFER, infer_body(images(1))), range(24)))
        statuses = [status for status, _, _ in found]
        assert set(statuses) == {200, 429}
        assert all(headers["Retry-After"] == "1" for status, headers, _ in found if status == 429)
        text = ask(address, "GET", "/metrics")[2].decode()
        assert f'nestling_requests_total{{route="infer",status="429"}} {statuses.count(429)}' in text
        assert service.intake.dispatcher.waiting == 0


def test_open_requests_are_limited():
    with served(max_requests=2) as (address, service):
        service.intake.dispatcher.engine.pause = 0.2
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: ask(address, "POST", INFER, infer_body(images(1))), range(6)))
        assert {status for status, _, _ in found} == {200, 429}


def test_a_token_is_asked_for():
    with served(token="open-sesame") as (address, _):
        for path in ("/metrics", "/v2", "/v2/models/numbers", "/predict"):
            for given in ({}, {"Authorization": "Bearer open-sesam"}, {"Authorization": "open-sesame"}):
                found = ask(address, "GET", path, headers=given)
                assert error_of(found, 401)
                assert found[1]["WWW-Authenticate"] == "Bearer"
        assert ask(address, "GET", "/v2", headers={"Authorization": "Bearer open-sesame"})[0] == 200
        assert ask(address, "GET", "/v2/health/ready")[0] == 200


def test_bodies_are_limited(address):
    assert "20,000 bytes" in error_of(ask(address, "POST", INFER, b"x" * 30_000), 413)
    chunks = (b"x" * 5_000 for _ in range(6))
    assert error_of(ask(address, "POST", INFER, chunks), 413)  # without a Content-Length


def test_pixels_are_limited(address):
    assert error_of(ask(address, "POST", "/predict", bomb()), 400)
    assert error_of(ask(address, "POST", "/predict", bomb(150)), 400)
    assert error_of(ask(address, "POST", "/predict", png(np.zeros((101, 100), np.uint8))), 400)
    assert ask(address, "POST", "/predict", png(np.zeros((100, 100), np.uint8)))[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /pre",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
    ],
)
def test_slow_senders_are_sent_away(address, sent):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.count(b"HTTP/1.1 408") == 1
    assert answer.endswith(b'to arrive"}')


def test_a_sender_that_trickles_is_sent_away(address):
    host, port = address.split(":")
    began = time.perf_counter()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        with suppress(OSError):  # it is closed while it sends
            while time.perf_counter() - began < 10:
                connection.sendall(b"x")
                time.sleep(0.05)
    assert time.perf_counter() - began < 10
    assert ask(address, "GET", "/v2")[0] == 200


def test_predict(address):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
    expected = Numbers().answer(2, {"images": pixels[None, None]})["probs"][0]
    content = png(pixels)
    form = b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--b\r\n'
    form += b'Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    form += content + b"\r\n--b--\r\n"
    for body, kind in ((content, "image/png"), (form, "multipart/form-data; boundary=b")):
        status, _, text = ask(address, "POST", "/predict", body, {"Content-Type": kind})
        found = json.loads(text)
        assert status == 200
        assert found["class"] == "abc"[expected.argmax()]
        assert found["probability"] == expected.max()
        assert found["probabilities"] == dict(zip("abc", expected.tolist(), strict=True))
        assert found["uncertainty"]["entropy"] == pytest.approx(-(expected * np.log(expected)).sum(), abs=1e-6)
        assert found["sets"] == {"0.9": [name for name, prob in zip("abc", expected, strict=True) if 1 - prob <= 0.6]}
        assert found["width"] == "1"
        assert found["ms"] > 0
    assert json.loads(ask(address, "POST", "/predict?width=0.25", content)[2])["width"] == "0.25"
    assert "width" in error_of(ask(address, "POST", "/predict?width=0.3", content), 400)


def test_metrics_count(address):
    with served() as (address, _):
        for width in ("0.25", "1", "1"):
            assert ask(address, "POST", INFER, infer_body(images(2), width=width))[0] == 200
        ask(address, "GET", "/nowhere")
        status, headers, body = ask(address, "GET", "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert lines['nestling_examples_total{width="1"}'] == "4"
    assert lines['nestling_examples_total{width="0.25"}'] == "2"
    assert lines['nestling_requests_total{route="infer",status="200"}'] == "3"
    assert lines['nestling_requests_total{route="other",status="404"}'] == "1"
    assert lines['nestling_request_seconds_bucket{le="+Inf"}'] == lines["nestling_request_seconds_count"] == "3"
    entropy = Numbers().answer(0, {"images": images(2)})["entropy"].sum()
    assert float(lines['nestling_entropy_nats_total{width="0.25"}']) == pytest.approx(entropy)
    assert lines["nestling_width_number"] == "2"


SLOW = """
import sys
sys.path.insert(0, sys.argv[1])
from served import Numbers
from nestling.service import Serving, application, serve
engine = Numbers()
service = application(engine, name="numbers", options=Serving(max_batch=4))
engine.pause = 0.15
serve(service, port=0, say=lambda line: print(line, flush=True))
"""


def test_sigterm_loses_nothing_that_was_taken():
    command = [sys.executable, "-c", SLOW, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split("/")[2]
            with ThreadPoolExecutor(20) as pool:
                body = infer_body(images(1))
                pending = [pool.submit(ask, address, "POST", INFER, body) for _ in range(20)]
                wait_until(lambda: int(ask(address, "GET", "/metrics")[2].split(b"requests_open ")[-1].split()[0]) > 10)
                process.send_signal(signal.SIGTERM)
                assert error_of(ask(address, "POST", INFER, body), 503)
                assert [own.result()[0] for own in pending] == [200] * 20
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_while_it_stops_it_finishes_and_takes_nothing_new():
    found = {}
    with served() as (address, service):
        engine = service.intake.dispatcher.engine
        engine.pause, engine.batches = 0.5, []

        def send():
            found["taken"] = ask(address, "POST", INFER, infer_body(images(1), width="1"))[0]

        thread = threading.Thread(target=send)
        thread.start()
        wait_until(lambda: engine.batches)
        service.intake.draining = True
        assert "stopping" in error_of(ask(address, "POST", INFER, infer_body(images(1))), 503)
        assert ask(address, "GET", "/v2/health/ready")[0] == 503
        assert ask(address, "GET", "/v2/health/live")[0] == 200
        thread.join()
    assert found["taken"] == 200
