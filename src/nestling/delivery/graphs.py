"""The graphs that can be delivered, by what they say of their own uncertainty."""

from collections.abc import Callable

import torch

from nestling.delivery.about import described, described_inputs
from nestling.delivery.deployable import BYTE, Answer, Called, Deployable, Normalise, output_names, ports_of
from nestling.delivery.formats import Graph, Port
from nestling.delivery.source import Source
from nestling.runtime import BATCH


def plain_graph(source: Source) -> Graph:
    """One pass with the mean weights: the distribution that the likelihood reads in it, or the outputs as they are."""
    called = Called(source.network, source.example)
    normalise, ports = normalised_ports(source)
    args, kwargs = source.example
    output = source.network(*args, **kwargs)
    known = source.known
    answer = None if known.likelihood is None else Answer(known.likelihood, known.temperature, output)
    outputs = output_names(output) if answer is None else answer.names
    module = Deployable(called, normalise, answer).eval()
    return Graph(module, ports, outputs, about_graph(source, ports, outputs))


def normalised_ports(source: Source) -> tuple[Normalise | None, tuple[Port, ...]]:
    """The module that normalises inputs, if the data are known, and the inputs of a file."""
    if not source.known.normalises:
        return None, ports_of(source.network, source.example)
    data, last = source.known.data, source.layout == "nhwc"
    shape = list(data["input_shape"])
    normalise = Normalise(data["mean"], data["std"], 1 + len(shape), as_bytes=source.as_bytes, last=last)
    name = "images" if len(shape) == 3 else "inputs"
    dtype = torch.uint8 if source.as_bytes else torch.float32
    example = torch.zeros(2, *([*shape[1:], shape[0]] if last else shape), dtype=dtype)
    return normalise, (Port(name, example, {0: BATCH}),)


def about_graph(source: Source, ports: tuple[Port, ...], outputs: tuple[str, ...]) -> dict[str, object]:
    """The record of a graph."""
    first: dict[str, object] = {}
    if source.known.normalises:
        first = {"layout": source.layout}
        if source.known.data.get("as_bytes"):
            first["scale"] = int(BYTE) if source.as_bytes else 1  # the value of a pixel that is fully lit
    about = described(source.network, source.known, source.cost, source.nested, source.cut, source.asked)
    return about | {"inputs": described_inputs(ports, **first), "outputs": list(outputs), "uncertainty": None}


GRAPHS: dict[str | None, Callable[[Source], Graph]] = {None: plain_graph}
"""The graphs by what ``export(uncertainty=)`` names."""
