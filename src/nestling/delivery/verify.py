"""Nothing is delivered unverified: a file is run in its own runtime, on new inputs, and compared with torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nestling.delivery.formats import Graph, Port
from nestling.errors import NestlingError
from nestling.running import TOLERANCE, gap, latencies_ms
from nestling.runtime import BATCH, UNCERTAINTIES, Session

BATCHES = (1, 2, 64)
"""The numbers of examples that a file is run with."""


def verified(graph: Graph, session: Session) -> float:
    """The largest difference between the answers of a file and torch's, relative to the largest answer.

    Raises:
        NestlingError: if it is larger than rounding makes it, or names of inputs and outputs differ.
    """
    names = tuple(port.name for port in graph.inputs), graph.outputs
    if (session.inputs, session.outputs) != names:
        raise NestlingError(f"the file has the inputs and outputs {session.inputs, session.outputs}, not {names}.")
    if session.about != json.loads(json.dumps(graph.about)):
        raise NestlingError("the record that the file has is not the one that was written to it.")
    return check_difference(worst_difference(graph, session))


def worst_difference(graph: Graph, session: Session) -> float:
    """The largest difference between the answers of a file and torch's on new inputs."""
    return max(_difference(graph, session, inputs) for inputs in _new_inputs(graph))


def check_difference(worst: float) -> float:
    """Refuse a difference that is larger than rounding makes it."""
    if worst > TOLERANCE:
        raise NestlingError(
            f"the file's answers differ from torch's by {worst:.2g} of the largest one, and rounding makes at most "
            f"{TOLERANCE:g}; nothing was written. Try another format, or deliver the network with nl.extract."
        )
    return worst


def latencies_of(opened: Sequence[tuple[Graph, Session]]) -> list[float]:
    """The median milliseconds of one example in each of several open files, which run in turns."""
    return latencies_ms([partial(session.run, next(_new_inputs(graph))) for graph, session in opened], ((), {}))


def _difference(graph: Graph, session: Session, arrays: Mapping[str, np.ndarray]) -> float:
    tensors = [torch.from_numpy(arrays[port.name]) for port in graph.inputs]
    with torch.no_grad():
        expected = graph.module(*tensors)
    answers = {name: torch.from_numpy(np.asarray(array)) for name, array in session.run(arrays).items()}
    named = dict(zip(graph.outputs, [expected] if isinstance(expected, Tensor) else expected, strict=True))
    return gap(_on_scales(named), _on_scales({name: answers[name] for name in graph.outputs}))


def _on_scales(outputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs, those that are parts of one uncertainty as one tensor, since a small part is a difference of two."""
    parts = [outputs[name] for name in UNCERTAINTIES if name in outputs]
    if len({part.shape for part in parts}) != 1:
        return list(outputs.values())
    return [*(tensor for name, tensor in outputs.items() if name not in UNCERTAINTIES), torch.stack(parts)]


def _new_inputs(graph: Graph) -> Iterator[dict[str, np.ndarray]]:
    """Inputs that are not the example: for each number of examples, and once with every other open size one larger."""
    sizes = {name: port.example.shape[axis] for port in graph.inputs for axis, name in port.open_axes.items()}
    larger = {name: size + 1 for name, size in sizes.items() if name != BATCH}
    generator = np.random.default_rng(0)
    changes = [{BATCH: batch} for batch in BATCHES] if BATCH in sizes else [{}]
    for change in [*changes, *([larger] if larger else [])]:
        yield {port.name: _values(port, sizes | change, generator) for port in graph.inputs}


def _values(port: Port, sizes: Mapping[str, int], generator: np.random.Generator) -> np.ndarray:
    """New values for an input: any bytes, normal numbers, and whole numbers within those of the example."""
    shape = [sizes[port.open_axes[axis]] if axis in port.open_axes else n for axis, n in enumerate(port.example.shape)]
    example = port.example.numpy()
    if example.dtype.kind == "f":
        return generator.standard_normal(shape).astype(example.dtype)
    if example.dtype == np.uint8:
        return generator.integers(0, 256, shape, dtype=np.uint8)
    low, high = (int(example.min()), int(example.max())) if example.size else (0, 0)
    return generator.integers(low, high, shape, endpoint=True).astype(example.dtype)
