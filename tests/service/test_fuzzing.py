"""Malformed requests get a status from 400 to 499 with one line that says why, and leave nothing behind."""

import json
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))
from malformed import INFER, KINDS, bytes_on_the_wire, good_body
from served import ask, served


@pytest.fixture(scope="module")
def address():
    with served(receive_seconds=2.0, max_pixels=1_000_000) as (address, _):
        yield address


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_malformed_requests_are_refused(address, kind):
    rng = np.random.default_rng(0)
    for _ in range(25):
        method, path, body, headers = kind(rng)
        status, _, text = ask(address, method, path, body, headers)
        assert 400 <= status < 500, (method, path, body[:300], headers, text)
        (line,) = json.loads(text).values()
        assert line
        assert "\n" not in line


def test_bytes_that_are_not_http(address):
    rng, (host, port) = np.random.default_rng(0), address.split(":")
    for _ in range(30):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(bytes_on_the_wire(rng))
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = connection.recv(100)
            except ConnectionResetError:
                continue
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), answer


def test_and_it_still_answers(address):
    status, _, _ = ask(address, "POST", INFER, json.dumps(good_body(np.random.default_rng(0))))
    assert status == 200
