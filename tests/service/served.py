"""A service on a port of this machine for tests: uvicorn in a thread, and a network of numpy."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection

import numpy as np
import uvicorn

from nestling.service import Engine, Serving, application
from nestling.service.connection import patient
from nestling.service.width import Calibrated, Width

INPUTS = [{"name": "images", "dtype": "uint8", "shape": ["batch", 1, 4, 4], "layout": "nchw", "scale": 255}]


class Numbers(Engine):
    """Three classes of images of 4 x 4 pixels; a width uses more of the pixels, and takes longer if ``seconds`` say.

    Each batch takes ``pause`` seconds more, which a test sets after the start.
    """

    platform = "numpy"

    def __init__(self, seconds=(0.0, 0.0, 0.0), thresholds=None):
        self.about = {"inputs": INPUTS, "classes": ["a", "b", "c"], "data": {"as_bytes": True}}
        calibrated = Calibrated(1.0, thresholds or {})
        self.widths = tuple(
            Width(name, float(name), calibrated, {"all": number}) for number, name in enumerate(("0.25", "0.5", "1"))
        )
        self.seconds, self.pause = seconds, 0.0
        self.weight = 2 * np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
        self.batches = []

    def run(self, width, inputs):
        images = inputs["images"].reshape(len(inputs["images"]), 16).astype(np.float32) / 255
        self.batches.append((width, len(images)))
        time.sleep(self.pause + self.seconds[width] * len(images))
        kept = (4, 8, 16)[width]
        logits = np.stack([(row[:kept, None] * self.weight[:kept]).sum(0) for row in images])
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return {"probs": powers / powers.sum(1, keepdims=True), "logits": logits}


@contextmanager
def served(engine=None, *, token=None, name="numbers", **options):
    """A service; gives its address as host:port, and the service."""
    service = application(Numbers() if engine is None else engine, name=name, options=Serving(**options), token=token)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(
        service, http=patient(service.options.receive_seconds), ws="none", lifespan="on", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", service
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()


def ask(address, method, path, body=None, headers=None, timeout=20):
    """The status, headers and body of an answer."""
    connection = HTTPConnection(address, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def wait_until(found, seconds=20.0):
    """Wait for something to be so, but not for ever."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 1, 4, 4)).astype(np.uint8)
