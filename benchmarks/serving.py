"""A service under load: 99 % latency, widths and accuracy, beside the full width alone; a table and a picture.

Arrivals are at random (Poisson) and do not wait for answers: some seconds at 0.3 of what the full width serves, some at
3 times it, and some at 0.3 again. Latency counts from the moment at which a request was due. What the full width serves
is measured first, with several requests open at a time. Each request has several images of the run's test data.
Service, sender and all else that runs share the machine, so figures are of this machine at this moment.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measuring import report

import nestling as nl

CALM, LOAD = 0.3, 3.0
OPEN = 4
"""How many requests are open while it is measured what the full width serves."""
PATIENCE = 60.0


@dataclass
class Sent:
    """A request: when it was due, and of its answer the status, seconds, width, and how many labels are right."""

    due: float
    status: int = 0
    seconds: float = float("inf")
    width: str = ""
    right: float = 0.0


@dataclass
class Series:
    """The width and the queue of a service over time, by its metrics."""

    seconds: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)


class Sender:
    """Sends images of a data set to a service, and judges the answers."""

    def __init__(self, address: str, images: np.ndarray, labels: np.ndarray, port: dict[str, Any], size: int) -> None:
        host, number = address.split(":")
        self.at, self.images, self.labels, self.size = (host, int(number)), images, labels, size
        self.port, self.start = port, 0.0

    def _request(self, first: int) -> bytes:
        array = self.images[first : first + self.size]
        datatype = {"uint8": "UINT8", "float32": "FP32"}[array.dtype.name]
        tensor = {"name": self.port["name"], "shape": list(array.shape), "datatype": datatype}
        tensor["parameters"] = {"binary_data_size": array.nbytes}
        text = json.dumps({"inputs": [tensor], "outputs": [{"name": "probs"}]}).encode()
        head = "POST /v2/models/served/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        head += f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + array.nbytes}\r\n\r\n"
        return head.encode() + text + array.tobytes()

    async def send(self, sent: Sent, number: int) -> None:
        """Send one request and note its answer; one that is lost keeps the status 0."""
        first = number * self.size % (len(self.images) - self.size)
        try:
            status, body = await self._exchanged(self._request(first))
        except OSError:
            return
        sent.status, sent.seconds = status, time.perf_counter() - self.start - sent.due
        if status == 200:
            answer = json.loads(body)
            probs = np.array(answer["outputs"][0]["data"]).reshape(self.size, -1)
            sent.width = answer["parameters"]["width"]
            sent.right = float((probs.argmax(1) == self.labels[first : first + self.size]).mean())

    async def _exchanged(self, content: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(*self.at)
        try:
            writer.write(content)
            answer = await asyncio.wait_for(reader.read(-1), PATIENCE)
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def capacity(self, seconds: float) -> float:
        """The requests per second that are answered with a few open at a time."""
        self.start, done = time.perf_counter(), 0

        async def work(number: int) -> None:
            nonlocal done
            while time.perf_counter() - self.start < seconds:
                sent = Sent(0.0)
                await self.send(sent, number)
                number, done = number + OPEN, done + (sent.status == 200)

        await asyncio.gather(*(work(number) for number in range(OPEN)))
        return done / (time.perf_counter() - self.start)

    async def load(self, dues: Sequence[float], end: float) -> tuple[list[Sent], Series]:
        """Send a request at each of these times, without waiting for answers."""
        found, series, tasks = [Sent(due) for due in dues], Series(), []
        self.start = time.perf_counter()
        watch = asyncio.create_task(self._watch(series))
        for number, sent in enumerate(found):
            await asyncio.sleep(max(0.0, sent.due - (time.perf_counter() - self.start)))
            tasks.append(asyncio.create_task(self.send(sent, number)))
        await asyncio.gather(*tasks)
        await asyncio.sleep(max(0.0, end - (time.perf_counter() - self.start)))
        watch.cancel()
        return found, series

    async def _watch(self, series: Series) -> None:
        content = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        while True:
            _, body = await self._exchanged(content)
            values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
            series.seconds.append(time.perf_counter() - self.start)
            series.kept.append(float(values["nestling_width_kept"]))
            series.queue.append(float(values["nestling_queue_examples"]))
            await asyncio.sleep(0.2)


@contextmanager
def served(path: Path, target: float) -> Iterator[str]:
    """The address of a service of a file."""
    options = ["--port", "0", "--threads", "1", "--target-ms", str(target), "--name", "served"]
    options += ["--max-batch", "64", "--queue", "1024"]
    command = [sys.executable, "-m", "nestling", "serve", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split("/")[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def arrivals(phases: Sequence[tuple[float, float]], seed: int) -> list[float]:
    """Times of random arrivals in phases of (seconds, requests per second)."""
    rng, start, times = np.random.default_rng(seed), 0.0, list[float]()
    for seconds, rate in phases:
        at = start + rng.exponential(1 / rate)
        while at < start + seconds:
            times.append(at)
            at += rng.exponential(1 / rate)
        start += seconds
    return times


def figures(found: Sequence[Sent], series: Series, begin: float, end: float) -> dict[str, Any]:
    """The figures of the loaded phase, and what was lost in all."""
    during = [sent for sent in found if begin <= sent.due < end]
    answered = [sent for sent in during if sent.status == 200]
    seconds = np.array([sent.seconds for sent in answered] or [np.nan])
    names = sorted({sent.width for sent in answered})
    after = [(at, kept) for at, kept in zip(series.seconds, series.kept, strict=True) if at >= end]
    narrow = [at for at, kept in after if kept < max(series.kept)]
    return {
        "requests": len(during),
        "refused": sum(sent.status == 429 for sent in during),
        "lost": sum(sent.status not in (200, 429) for sent in found),
        "p50_ms": round(1000 * float(np.median(seconds)), 1),
        "p99_ms": round(1000 * float(np.quantile(seconds, 0.99)), 1),
        "accuracy": round(float(np.mean([sent.right for sent in answered] or [np.nan])), 4),
        "widths": {name: round(sum(sent.width == name for sent in answered) / len(answered), 3) for name in names},
        "back_after_s": round(narrow[-1] - end, 1) if narrow else 0.0,
    }


def draw(path: Path, runs: dict[str, tuple[list[Sent], Series]], target: float, begin: float, end: float) -> None:
    """Width, latency and queue over time, of each service."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(8, 6.4), sharex=True, constrained_layout=True)
    for (name, (found, series)), color, mark in zip(runs.items(), ("#0f6c88", "#b4491f"), ("o", "x"), strict=True):
        done = [(sent.due, 1000 * sent.seconds) for sent in found if sent.status == 200]
        axes[0].step(series.seconds, series.kept, where="post", color=color, label=name)
        axes[1].plot(
            *zip(*done, strict=True), mark, color=color, markersize=3, linestyle="none", label=name, rasterized=True
        )
        axes[2].plot(series.seconds, series.queue, color=color, label=name)
    axes[1].axhline(target, color="black", linewidth=0.8, linestyle="--")
    axes[1].set_yscale("log")
    for axis, label in zip(axes, ("share of blocks kept", "latency, ms", "examples waiting"), strict=True):
        axis.set_ylabel(label)
        axis.axvspan(begin, end, color="0.5", alpha=0.12, linewidth=0)
    axes[0].set_ylim(0, 1.08)
    axes[0].legend(loc="lower right")
    axes[2].set_xlabel(f"seconds; in the shaded part arrivals are at {LOAD:g} times what the full width serves")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run; by default digits are trained")
    parser.add_argument("--trust", action="store_true", help="let the run name code and data")
    parser.add_argument("--target-ms", type=float, default=1000.0)
    parser.add_argument("--images", type=int, default=16, help="images in a request")
    parser.add_argument("--seconds", type=float, nargs=3, default=(5.0, 12.0, 9.0), help="of the three phases")
    parser.add_argument("--out", type=Path, help="write a picture to this .svg file")
    options = parser.parse_args()
    run = nl.open_run(options.run, trust=options.trust) if options.run else trained()
    test = nl.data.load(**run.data["loaded_with"]).split("test")
    images, labels = test.inputs.numpy(), test.targets.numpy()
    begin, end = options.seconds[0], options.seconds[0] + options.seconds[1]
    runs: dict[str, tuple[list[Sent], Series]] = {}
    with TemporaryDirectory() as folder:
        files = {"full width": Path(folder) / "whole.onnx", "all widths": Path(folder) / "all.onnx"}
        nl.export(run, files["full width"], cut=1.0, compare=False)
        port = nl.export(run, files["all widths"], widths="all").about["inputs"][0]
        full = 0.0
        for name, path in files.items():
            with served(path, options.target_ms) as address:
                sender = Sender(address, images, labels, port, options.images)
                asyncio.run(sender.capacity(2.0))
                full = full or asyncio.run(sender.capacity(5.0))
                phases = list(zip(options.seconds, (CALM * full, LOAD * full, CALM * full), strict=True))
                dues = arrivals(phases, seed=0)
                runs[name] = asyncio.run(sender.load(dues, sum(options.seconds)))
            found = figures(*runs[name], begin, end)
            report("serving", service=name, target_ms=options.target_ms, full_per_s=round(full, 1), **found)
    if options.out is not None:
        draw(options.out, runs, options.target_ms, begin, end)


def trained() -> "nl.Run":
    """A run of a small network of convolutions on the embedded digits."""
    os.environ.setdefault("NESTLING_DATA", ".")
    import torch

    data = nl.data.load("digits")
    net = nl.models.build("mlp", hidden=[2048, 2048], in_features=64, num_classes=10)
    nested = nl.nest(net, torch.zeros(2, 1, 8, 8), num_blocks=16, num_always=1)
    return nl.train(nested, data, nl.Recipe(epochs=3, batch_size=64, cuts=(0.25, 0.5, 0.75, 1.0)), quiet=True)


if __name__ == "__main__":
    main()
