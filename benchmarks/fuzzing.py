"""What a service answers to malformed requests: their statuses, and its memory before and after.

A small network is exported and served by `nestling serve`. The requests are made at random from the kinds in
tests/service/malformed.py, over several connections at once; some are bytes that are no HTTP, and some senders stop in
the middle. With schemathesis installed (pip install schemathesis), requests are made from the service's own OpenAPI
page too: its examples, its edge cases, random ones and sequences of several, right and wrong, until ``--seconds`` are
over. Its report says which answers do not fit the page.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import numpy as np
import torch
from measuring import report

import nestling as nl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "service"))
HALF = b"POST /predict HTTP/1.1\r\nHost: a\r\nConte"
"""A request whose sender stops in the middle of its head."""
PATIENCE = 30.0
"""Seconds without an answer after which a request counts as hung."""


def written(folder: Path) -> Path:
    """A file of a network for grey images of 4 x 4 pixels."""
    net = nl.models.build("mlp", hidden=[32, 16], in_features=16, num_classes=3)
    nested = nl.nest(net, torch.zeros(2, 1, 4, 4), num_blocks=4, num_always=1)
    data = {"name": "noise", "input_shape": [1, 4, 4], "mean": [0.5], "std": [0.3], "as_bytes": True}
    data |= {"classes": ["a", "b", "c"]}
    path = folder / "numbers.onnx"
    nl.export(nested, path, widths=[0.25, 0.5, 1.0], data=data, likelihood="categorical")
    return path


@contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """The address of a service of the file, and its process."""
    options = ("--port", "0", "--threads", "1", "--receive-seconds", "3", "--max-pixels", "1000000")
    command = [sys.executable, "-m", "nestling", "serve", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split("/")[2], process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def megabytes(pid: int) -> float:
    """The memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def asked(address: str, seed: int) -> str:
    """The status of the answer to one malformed request at random, or what happened instead."""
    rng, malformed = np.random.default_rng(seed), import_module("malformed")
    kinds = malformed.KINDS
    kind = int(rng.integers(len(kinds) + 2))
    if kind >= len(kinds):
        content = malformed.bytes_on_the_wire(rng) if kind == len(kinds) else HALF
        return raw(address, content, stops=kind == len(kinds) or seed % 50 > 0)
    method, path, body, headers = kinds[kind](rng)
    connection = HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except TimeoutError:
        return "hung"
    except (OSError, HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def raw(address: str, content: bytes, *, stops: bool) -> str:
    """The status of the answer to bytes; one that does not stop leaves its connection open in the middle."""
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(content)
            if stops:
                connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
    except TimeoutError:
        return "hung"
    except OSError as error:
        return type(error).__name__
    return answer.split()[1].decode() if answer else "closed"


def by_schema(address: str, seconds: int, place: Path) -> dict[str, int]:
    """The statuses of what schemathesis makes of the OpenAPI page, as the service counted them.

    ``failed`` is 1 if an answer does not fit the page. That every request which fits the page is accepted is not
    checked: a schema can't say that the number of values must fit the shape, or how long a header says JSON is.
    """
    before = statuses(address)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://{address}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing,stateful", "--mode", "all", "--continue-on-failure"]
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    command += ["--max-time", str(seconds), "--request-timeout", str(PATIENCE)]
    done = subprocess.run(command, env=os.environ | {"NO_COLOR": "1"}, cwd=place, check=False, timeout=10 * seconds)
    return dict(sorted((statuses(address) - before).items())) | {"failed": done.returncode}


def statuses(address: str) -> Counter[str]:
    """How many requests were answered with each status, by the service's own count."""
    with urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("nestling_requests_total{")]
    found: Counter[str] = Counter()
    for line in lines:
        found[line.split('status="')[1].split('"')[0]] += int(line.split()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="requests made by hand")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=600, help="how long schemathesis makes requests; 0 for not")
    options = parser.parse_args()
    with TemporaryDirectory() as folder, served(written(Path(folder))) as (address, pid):
        with ThreadPoolExecutor(options.connections) as pool:
            list(pool.map(lambda seed: asked(address, seed), range(500)))  # until its memory has settled
            before = megabytes(pid)
            found = Counter(pool.map(lambda seed: asked(address, 1000 + seed), range(options.requests)))
        middle = megabytes(pid)
        schema: dict[str, int] | None = None
        if options.seconds and find_spec("schemathesis"):
            schema = by_schema(address, options.seconds, Path(folder))
        memory = {"before_mb": round(before, 1), "after_mb": round(middle, 1), "end_mb": round(megabytes(pid), 1)}
        report("fuzzing", by_hand=dict(sorted(found.items())), by_schema=schema, **memory)


if __name__ == "__main__":
    main()
