"""How far the milliseconds of cascades follow their multiply-adds: onnxruntime, one image at a time.

PYTHONPATH=benchmarks:experiments/bn3 python benchmarks/cascade_milliseconds.py vgg11 resnet20 lenet

A file of three widths with a cascade is opened by ``nl.runtime.open_cascade``. Thresholds are set so that of the timed
images half end at a quarter of the width, 30 % at half, and 20 % at the full width. Per network:

- the shares of multiply-adds and of milliseconds that a call takes at each width, of those at full width;
- for the cascade three shares of the full width's average cost: in multiply-adds, in milliseconds as they follow from
  those of the widths, and measured, with all that ``predict`` does between the calls.

CPU time on one thread, all in turns. The weights are random: it costs the same.
"""

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import in_turns, machine, report
from torch import nn

import nestling as nl
from nestling.cascade import Cascade
from nestling.cascade.outcomes import ANSWERS_ALL

CUTS = (0.25, 0.5, 1.0)
REACHED = (1.0, 0.5, 0.2)
"""The share of the images that each stage runs on."""
IMAGES = 20


def vgg11() -> tuple[nn.Module, tuple[int, ...]]:
    """The VGG11 of a quarter of the channels that experiments/bn3/widths.py trains."""
    return nl.models.build("vgg11", width=0.25), (3, 32, 32)


def vgg11_whole() -> tuple[nn.Module, tuple[int, ...]]:
    """VGG11 with all of its channels."""
    return nl.models.build("vgg11"), (3, 32, 32)


def resnet20() -> tuple[nn.Module, tuple[int, ...]]:
    """The ResNet-20 of experiments/bn3/pretrained.py, which PYTHONPATH names."""
    return nl.models.build("pretrained:ResNet20"), (3, 32, 32)


def lenet() -> tuple[nn.Module, tuple[int, ...]]:
    """LeNet-5 of Caffe."""
    return nl.models.build("lenet_5_caffe"), (1, 28, 28)


NETWORKS = {own.__name__: own for own in (vgg11, vgg11_whole, resnet20, lenet)}


def cascade_of(nested: nl.Nested, images: torch.Tensor) -> Cascade:
    """A cascade whose stages see the given shares of the images; what it was fitted to has no meaning."""
    labels = torch.arange(len(images)) % 10
    fitted = nl.cascade(nested, CUTS, [(images, labels)], goal="macs=1x", score="max_probability", samples=0)
    left, stages = images, []
    for stage, reached in zip(fitted.stages[:-1], REACHED[1:], strict=True):
        stage = dataclasses.replace(stage, calibration=dataclasses.replace(stage.calibration, temperature=0.1))
        p = nl.predict(nested, left, cut=stage.cut, samples=0, calibration=stage.calibration)
        scores = p.unfamiliarity()["max_probability"]
        going_on = scores.argsort(descending=True)[: round(reached * len(images))]
        ends = scores.sort().values
        place = len(left) - len(going_on)
        stages.append(dataclasses.replace(stage, threshold=float((ends[place - 1] + ends[place]) / 2)))
        left = left[going_on]
    last = dataclasses.replace(fitted.stages[-1], threshold=ANSWERS_ALL)
    return dataclasses.replace(fitted, stages=(*stages, last))


def measured(name: str, rounds: int) -> dict[str, Any]:
    """The shares of one network."""
    torch.manual_seed(0)
    module, shape = NETWORKS[name]()
    nested = nl.nest(module.eval(), torch.zeros(2, *shape), num_blocks=16, num_always=2, weights=None).eval()
    images = torch.randn(IMAGES, *shape)
    casc = cascade_of(nested, images)
    with tempfile.TemporaryDirectory() as folder:
        file = nl.export(nested, Path(folder) / "widths.onnx", cascade=casc).files[0]
        opened = nl.runtime.open_cascade(file, threads=1)
    arrays = [image[None].numpy() for image in images]
    runs = {
        stage["name"]: _session_call(network, arrays[0])
        for stage, network in zip(opened.stages, opened.networks, strict=True)
    }
    widest = opened.networks[-1]
    runs["cascade"] = lambda: [opened.predict(array) for array in arrays]
    runs["widest alone"] = lambda: [widest.predict(array) for array in arrays]
    calls = dict.fromkeys((str(stage["name"]) for stage in opened.stages), 40)
    times = in_turns(runs, rounds, calls)
    macs = [stage["macs"] for stage in opened.stages]
    found = opened.predict(np.concatenate(arrays))
    ms = [1e3 * statistics.median(times[str(stage["name"])]) for stage in opened.stages]
    reached = [float((found.stages >= number).mean()) for number in range(len(macs))]
    pairs = zip(times["cascade"], times["widest alone"], strict=True)
    share = {
        "macs": found.mean_macs / macs[-1],
        "ms": sum(part * own for part, own in zip(reached, ms, strict=True)) / ms[-1],
        "measured": statistics.median(one / other for one, other in pairs),
    }
    overhead = statistics.median(times["widest alone"]) / IMAGES * 1e3 - ms[-1]
    return {
        "macs": macs,
        "macs_of_widths": [round(own / macs[-1], 3) for own in macs],
        "ms_of_widths": [round(own / ms[-1], 3) for own in ms],
        "ms": [round(own, 4) for own in ms],
        "reached": reached,
        "cascade": {key: round(value, 3) for key, value in share.items()},
        "ms_over_macs": round(share["ms"] / share["macs"], 3),
        "measured_over_ms": round(share["measured"] / share["ms"], 3),
        "python_ms_per_call": round(overhead, 4),
    }


def _session_call(network: Any, array: np.ndarray) -> Any:  # noqa: ANN401
    """A call of onnxruntime alone, with the inputs that ``predict`` would give it."""
    kept: dict[str, np.ndarray] = {}
    session = network.session
    given, session.run = session.run, lambda arrays: kept.update(arrays) or given(arrays)
    network.predict(array)
    session.run = given
    return lambda: given(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=tuple(NETWORKS), default=["vgg11", "lenet"])
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    report("machine", **machine())
    for name in asked.networks:
        report(f"cascade of {name}, one image at a time", **measured(name, asked.rounds))


if __name__ == "__main__":
    main()
