"""The graphs that can be delivered, by what they say of their own uncertainty."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.about import described, described_inputs
from nestling.delivery.deployable import BYTE, Answer, Called, Deployable, Normalise, output_names, ports_of
from nestling.delivery.drawn import drawn_graph
from nestling.delivery.formats import Graph, Port
from nestling.delivery.moment_graph import moments_graph
from nestling.delivery.source import Source
from nestling.errors import ArgumentError
from nestling.runtime import BATCH, NORMAL


def plain_graph(source: Source, ports: Sequence[Port] = (), temperature: Callable[[], Tensor] | None = None) -> Graph:
    """One pass with the mean weights: the distribution that the likelihood reads in it, or the outputs as they are.

    ``ports`` are the inputs, by default those that the network's code names. ``temperature`` takes the place of that
    which is known.
    """
    args, kwargs = source.example
    output = source.network(*args, **kwargs)
    known = source.known
    answer = None if known.likelihood is None else Answer(known.likelihood, temperature or known.temperature, output)
    outputs = output_names(output) if answer is None else answer.names
    called = Called(source.network, source.example)
    inputs = ports or ports_of(source.network, source.example)
    return delivered_graph(source, called, inputs, outputs, answer=answer)


def delivered_graph(
    source: Source,
    network: nn.Module,
    ports: Sequence[Port],
    outputs: Sequence[str],
    *,
    answer: nn.Module | None = None,
    fills: Mapping[str, str] | None = None,
    **about: Any,  # noqa: ANN401
) -> Graph:
    """A module with its record, whose first input is as the user has it, if the data are known.

    ``fills`` names the inputs that a user need not give, and how they are filled: ``"normal"`` is noise, ``"zeros"``
    are bytes of which only the number matters. ``about`` is added to the record.
    """
    normalise, first = _first_input(source, ports[0])
    ports = (first, *ports[1:])
    inputs = described_inputs(ports)
    inputs[0] |= _form(source)
    for port in inputs:
        if port["name"] in (fills or {}):
            port["fill"] = (fills or {})[port["name"]]
    known = described(source.network, source.known, source.cost, source.nested, source.cut, source.asked)
    known |= {"inputs": inputs, "outputs": list(outputs), "uncertainty": None} | about
    return Graph(Deployable(network, normalise, answer).eval(), ports, tuple(outputs), known)


def _first_input(source: Source, port: Port) -> tuple[Normalise | None, Port]:
    """The module that normalises inputs, if the data are known, and the input that it takes."""
    if not source.known.normalises:
        return None, port
    data, last = source.known.data, source.layout == "nhwc"
    shape = list(data["input_shape"])
    normalise = Normalise(data["mean"], data["std"], 1 + len(shape), as_bytes=source.as_bytes, last=last)
    name = "images" if len(shape) == 3 else "inputs"
    dtype = torch.uint8 if source.as_bytes else torch.float32
    example = torch.zeros(2, *([*shape[1:], shape[0]] if last else shape), dtype=dtype)
    return normalise, Port(name, example, {0: BATCH})


def _form(source: Source) -> dict[str, Any]:
    """The layout of the first input, and the value in it of a pixel that is fully lit."""
    if not source.known.normalises:
        return {}
    if not source.known.data.get("as_bytes"):
        return {"layout": source.layout}
    return {"layout": source.layout, "scale": int(BYTE) if source.as_bytes else 1}


def _drawing(source: Source) -> Graph:
    """Averaged draws of the weights, with the noise of the draws as an input."""
    graph = _uncertain(drawn_graph, source)
    about: dict[str, Any] = {"sizes": {"samples": graph.about["noise"]["samples"]}, "uncertainty": "draws"}
    return delivered_graph(source, graph.module, graph.inputs, graph.outputs, fills={"noise": NORMAL}, **about)


def _carrying_moments(source: Source) -> Graph:
    """Means and variances of the weights, carried through the network in one pass and back."""
    graph = _uncertain(moments_graph, source)
    return delivered_graph(source, graph.module, graph.inputs, graph.outputs, uncertainty="moments")


def _uncertain(make: Callable[..., Graph], source: Source) -> Graph:
    if source.nested is None or source.cut is None:
        given, advice = "a plain network", "Export the nested network, or its run."
        raise ArgumentError("uncertainty", given, "a network with Bayesian weights", advice)
    return make(source.nested, source.cut, likelihood=source.known.likelihood, temperature=source.known.temperature)


GRAPHS: dict[str | None, Callable[[Source], Graph]] = {
    None: plain_graph,
    "draws": _drawing,
    "moments": _carrying_moments,
}
"""The graphs by what ``export(uncertainty=)`` names."""
