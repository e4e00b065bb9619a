"""A network at a cut as one graph that averages draws of its weights, with the noise of the draws as an input."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from nestling.delivery.answers import answer_names, answers
from nestling.delivery.drawn_noise import DrawnWeight, Fields, LayerNoise
from nestling.delivery.formats import Graph, Port
from nestling.delivery.mean_graph import LINEAR, DrawnLayer, MeanGraph, mean_graph, size_of
from nestling.errors import NestlingError
from nestling.prediction import Likelihood, likelihood_for
from nestling.reading import Cut
from nestling.running import TOLERANCE, Nested, extract, gap
from nestling.running.layers import VariationalConvolution, by_group

SAMPLES = 6
"""The number of draws that a file's record recommends, as the papers use."""


def drawn_graph(
    nested: Nested,
    cut: float | Mapping[str, int] | Cut,
    *,
    likelihood: str | Likelihood | None = None,
    temperature: float = 1.0,
) -> Graph:
    """A network at a cut as one graph of inputs and noise, which averages its draws; it draws nothing itself.

    Args:
        nested: A nested network with variational layers, whose input is one tensor.
        cut: The cut: a fraction of every group, widths by group name, or a Cut.
        likelihood: What an output means; None takes the one that the network was trained with.
        temperature: What ``calibrate`` found at this cut.

    Returns:
        A graph with the inputs ``x`` (B, ...) and ``noise``, whose record ``about["noise"]`` says how to make it, and
        the outputs that ``answers`` names.

    Raises:
        NestlingError: If nothing is drawn, or the network can't run with open batches.

    Examples:
        >>> graph = nl.delivery.drawn_graph(nested, 0.5)
        >>> noise = nl.runtime.noise_for(graph.about["noise"], seed=0, batch=len(images))
        >>> probs, entropy, aleatoric, epistemic = graph.module(images, torch.from_numpy(noise))
        >>> tuple(probs.shape)
        (100, 10)
    """
    means = mean_graph(nested, cut)
    module = DrawnGraph(means, likelihood_for(nested, likelihood), temperature).eval()
    record = module.noise
    example = means.example
    sizes = {"samples": SAMPLES, "batch": len(example)}
    noise = example.new_zeros(*(sizes[axis] for axis in record["axes"]), record["values"])
    _check(module, extract(nested, cut), example)
    ports = (Port("x", example, {0: "batch"}), Port("noise", noise, dict(enumerate(record["axes"]))))
    return Graph(module, ports, answer_names(module.likelihood), {"noise": record})


class DrawnGraph(nn.Module):
    """Answers for inputs and noise: each draw moves the outputs of every layer.

    The variance of an output channel is that of inputs that are the same at all positions. If a layer draws one weight
    for all positions, its noise differs between them as ``Fields`` says, or ``DrawnWeight``; else it is the same at all
    of them. Noise is (S, N), the same for all examples, if each layer draws one weight for a whole batch, and otherwise
    (S, B, N).
    """

    def __init__(self, means: MeanGraph, likelihood: Likelihood, temperature: float = 1.0) -> None:
        super().__init__()
        self.means, self.likelihood, self.temperature = means, likelihood, temperature
        self.shared = all(reading.layer.sampling == "shared" for reading in means.layers.values())
        self.drawn, self.reads_input = means.reached(means.layers), means.reached([means.input])
        for node, tensor in means.tensors.items():
            self.register_buffer(node.name, tensor)
        for node, reading in means.layers.items():
            self.register_buffer(f"{node.name}_variance", _even_variance(node, reading))
        noises = {node: self._noise_of(node, reading) for node, reading in means.layers.items()}
        self.noises = nn.ModuleDict({node.name: noise for node, noise in noises.items() if noise is not None})

    @property
    def noise(self) -> dict[str, Any]:
        """The record that a caller makes noise from: its axes, its length, and how much of it each layer takes."""
        layers = [[reading.path, self.num_values(node)] for node, reading in self.means.layers.items()]
        axes = ["samples"] if self.shared else ["samples", "batch"]
        return {"axes": axes, "values": sum(number for _, number in layers), "samples": SAMPLES, "layers": layers}

    def num_values(self, node: fx.Node) -> int:
        """How many noise values a layer takes per draw."""
        noise = self.noise_of(node)
        return _num_units(node) if noise is None else noise.num_values

    def noise_of(self, node: fx.Node) -> LayerNoise | None:
        """The noise of a layer that draws one weight for all positions."""
        if node.name not in self.noises:
            return None
        noise = self.noises[node.name]
        assert isinstance(noise, LayerNoise)
        return noise

    def _noise_of(self, node: fx.Node, reading: DrawnLayer) -> LayerNoise | None:
        if reading.layer.sampling not in ("shared", "each") or len(size_of(node)) <= 2:
            return None
        is_small = self.shared and node.all_input_nodes[0] not in self.drawn and DrawnWeight.takes(node, reading)
        return DrawnWeight(node, reading) if is_small else Fields(node, reading)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Answers for inputs (B, ...) and standard normal noise (S, N) or (S, B, N)."""
        return answers(self.likelihood, self.outputs(x, noise), self.temperature)

    def outputs(self, x: Tensor, noise: Tensor) -> Tensor:
        """(S, B, ...): the outputs of each draw."""
        outputs = _Run(self, x, noise).outputs()
        return outputs.reshape(x.shape[0], noise.shape[0], *outputs.shape[1:]).transpose(0, 1)


class _Run:
    """One call of a graph: values that no draw reaches are computed once, and others for all draws as one batch."""

    def __init__(self, module: DrawnGraph, x: Tensor, noise: Tensor) -> None:
        self.module, self.means = module, module.means
        self.drawn, self.reads_input = module.drawn, module.reads_input
        self.samples, self.size = noise.shape[0], x.shape[0]
        means, buffers = module.means, dict(module.named_buffers())
        self.variances = {node: buffers[f"{node.name}_variance"] for node in means.layers}
        sizes = [module.num_values(node) for node in means.layers]
        by_draw = noise.transpose(0, 1) if noise.ndim > 2 else noise.unsqueeze(0)
        self.noise = dict(zip(means.layers, torch.split(by_draw, sizes, -1), strict=True))
        self.once: dict[fx.Node, Any] = {node: buffers[node.name] for node in means.tensors} | {means.input: x}
        self.all: dict[fx.Node, Any] = {}

    def outputs(self) -> Tensor:
        for node in self.means.steps:
            if node in self.means.layers:
                self.all[node] = self._layer(node)
            elif node in self.drawn:
                self.all[node] = self._call(node, self._for_all)
            else:
                self.once[node] = self._call(node, self.once.__getitem__)
        result: Tensor = self._for_all(self.means.output)
        return result

    def _call(self, node: fx.Node, value: Any) -> Any:  # noqa: ANN401
        assert callable(node.target)
        return node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))

    def _for_all(self, node: fx.Node) -> Any:  # noqa: ANN401
        """A node's value for all draws, the draws of one example after those of the other."""
        if node not in self.all:
            value = self.once[node]
            if node in self.reads_input:
                copied = isinstance(value, Tensor)
                value = self._copies(value) if copied else self._call(node, self._for_all)
            self.all[node] = value
        return self.all[node]

    def _copies(self, value: Tensor) -> Tensor:
        return value.unsqueeze(1).expand(-1, self.samples, *value.shape[1:]).flatten(0, 1)

    def _layer(self, node: fx.Node) -> Tensor:
        """The outputs of a layer for all draws; if no draw reaches its input, it runs once."""
        source, *rest = node.args
        assert isinstance(source, fx.Node)
        x = self.all[source] if source in self.drawn else self.once[source]
        values = fx.node.map_arg(rest, self.once.__getitem__)
        own = self.module.noise_of(node)
        if isinstance(own, DrawnWeight):
            outputs: Tensor = own(x, self.noise[node], *values)
            return outputs
        operation: Any = node.target
        mean, std = self._by_draw(operation(x, *values), source), self._by_draw(self._std(node, x), source)
        if own is None:
            noise = _to_positions(node, std * self.noise[node])
        else:
            noise = own(self._by_draw(x, source), std, self.noise[node], values[2:])
        return (mean + noise).flatten(0, 1)

    def _by_draw(self, value: Tensor, source: fx.Node) -> Tensor:
        """(B, 1 or S, ...): a value of all draws as it depends on them, for an input that does or does not."""
        return value.reshape(self.size, self.samples, *value.shape[1:]) if source in self.drawn else value.unsqueeze(1)

    def _std(self, node: fx.Node, x: Tensor) -> Tensor:
        """(examples, units): the standard deviation of a layer's outputs."""
        variance, layer = self.variances[node], self.means.layers[node].layer
        squares = x * x
        if node.target is LINEAR:
            seconds = squares.flatten(1, -2).mean(1) if x.ndim > 2 else squares
            return F.linear(seconds, variance).sqrt()
        assert isinstance(layer, VariationalConvolution)
        seconds = squares.mean(tuple(range(-layer.rank, 0)))
        return by_group(seconds, variance, layer.num_groups(layer.posterior.mean)).sqrt()


@torch.no_grad()
def _check(module: DrawnGraph, plain: nn.Module, example: Tensor) -> None:
    """Refuse a graph whose draws without noise are not what the plain network computes, for another batch size."""
    x = torch.randn(len(example) + 2, *example.shape[1:], generator=torch.Generator().manual_seed(0)).to(example)
    shape = (2, module.noise["values"]) if module.shared else (2, len(x), module.noise["values"])
    try:
        outputs = module.outputs(x, x.new_zeros(shape))
        differs = max(gap(plain(x), drawn) for drawn in outputs) > TOLERANCE
    except RuntimeError:
        differs = True
    if differs:
        raise NestlingError(
            "the graph of draws does not compute what the network computes: the examples of a batch see each other, or "
            "the batch is not its first axis throughout. Export it without uncertainty."
        )


def _even_variance(node: fx.Node, reading: DrawnLayer) -> Tensor:
    """(out, in): the variance of a layer's weight, by the mean square of each input."""
    layer, variance = reading.layer, reading.layer.posterior.variance().detach()
    if isinstance(layer, VariationalConvolution):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        variance = layer.even_weight(variance, [int(size) for size in size_of(source)[-layer.rank :]])
    return reading.scaled(variance)


def _num_units(node: fx.Node) -> int:
    return int(size_of(node)[-1 if node.target is LINEAR else 1])


def _to_positions(node: fx.Node, moves: Tensor) -> Tensor:
    """Moves (..., units) of a layer's outputs, with an axis of length 1 for each axis of its positions."""
    positions = [1] * (len(size_of(node)) - 2)
    units = [*positions, -1] if node.target is LINEAR else [-1, *positions]
    return moves.reshape(*moves.shape[:-1], *units)
