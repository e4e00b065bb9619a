"""A network at a cut as one graph that carries means and variances, and slopes back, without noise or autograd."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from nestling.delivery.answers import answer_names, answers
from nestling.delivery.formats import Graph, Port
from nestling.delivery.mean_graph import CONVOLUTIONS, LINEAR, TRANSPOSED, MeanGraph, aten, mean_graph
from nestling.delivery.moment_layers import layer_rule
from nestling.delivery.moment_rules import (
    RULES,
    Back,
    Carried,
    Factors,
    MaxPool,
    MaxPoolOfFour,
    Rule,
    Same,
    no_rule,
    sum_of,
    whole,
)
from nestling.prediction import OUTPUT_SAMPLES, Likelihood, likelihood_for
from nestling.reading import Cut
from nestling.running import Nested
from nestling.running.moments import arriving, corrected, drawn_outputs, in_pairs

_LAYERS = {LINEAR, *CONVOLUTIONS, *TRANSPOSED}


def moments_graph(
    nested: Nested,
    cut: float | Mapping[str, int] | Cut,
    *,
    likelihood: str | Likelihood | None = None,
    temperature: float = 1.0,
) -> Graph:
    """A network at a cut as one graph that gives what ``predict(..., by="moments")`` does, in one pass and back.

    The last step, samples of the outputs alone, has fixed noise, in pairs of opposite sign; if an example has several
    outputs that stand alone, the random signs of these are fixed too.

    Args:
        nested: A nested network with variational layers, whose input is one tensor.
        cut: The cut: a fraction of every group, widths by group name, or a Cut.
        likelihood: What an output means; None takes the one that the network was trained with.
        temperature: What ``calibrate`` found at this cut.

    Returns:
        A graph with the input ``x`` (B, ...) and the outputs that ``answers`` names.

    Raises:
        NestlingError: If nothing is drawn, or an operation has no rule: the error names it.

    Examples:
        >>> graph = nl.delivery.moments_graph(nested, 0.5)
        >>> probs, entropy, aleatoric, epistemic = graph.module(images)
        >>> tuple(probs.shape)
        (100, 10)
    """
    means = mean_graph(nested, cut)
    module = MomentsGraph(means, likelihood_for(nested, likelihood), temperature).eval()
    return Graph(module, (Port("x", means.example, {0: "batch"}),), answer_names(module.likelihood), {})


class MomentsGraph(nn.Module):
    """Answers for inputs, by means and variances.

    Each noise source adds to the variance along the direction that matters; where elements that carry counted noise
    are mixed or bent, the variance that they would have brought as independent ones is taken out again.
    """

    noise: Tensor
    in_common: Tensor
    signs: Tensor

    def __init__(self, means: MeanGraph, likelihood: Likelihood, temperature: float = 1.0) -> None:
        super().__init__()
        self.means, self.likelihood, self.temperature = means, likelihood, temperature
        _pool_first(means)
        self.carried = means.reached(means.layers)
        for node, tensor in means.tensors.items():
            self.register_buffer(node.name, tensor)
        self.rules = nn.ModuleDict({node.name: _rule(node, means) for node in means.steps if node in self.carried})
        self.counted = {node for node in self.carried if self._is_counted(node)}
        self._prepare_outputs()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Answers for inputs (B, ...)."""
        return answers(self.likelihood, self.samples(*self.moments(x)), self.temperature)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mean and the variance of each output (B, ...), and how far each goes with noise in common."""
        run = self.run(x)
        output = run.forward()
        direction = self.likelihood.direction(output.mean, self._fixed_signs)
        along = run.back(direction.weights)
        return output.mean, *corrected(whole(output.variance), direction, along)

    def run(self, x: Tensor) -> "_Run":
        """A pass over inputs, to go forward and then back."""
        return _Run(self, x)

    def samples(self, mean: Tensor, variance: Tensor, together: Tensor | None) -> Tensor:
        """(S, B, ...): outputs for the fixed noise."""
        return drawn_outputs(mean, variance, together, self.noise, self.in_common)

    def _is_counted(self, node: fx.Node) -> bool:
        """Whether a node's fresh noise is counted there: its elements go several ways, or to the outputs."""
        users = [user for user in node.users if user in self.carried]
        mixed = any(self.rule_of(user).mixes for user in users)
        return len(users) > 1 or mixed or node is self.means.output

    def rule_of(self, node: fx.Node) -> Rule:
        """The rule of a node."""
        rule = self.rules[node.name]
        assert isinstance(rule, Rule)
        return rule

    @torch.no_grad()
    def _prepare_outputs(self) -> None:
        """Fix the noise of the samples of outputs, and the signs of outputs that stand alone."""
        mean = self.run(self.means.example).forward().mean
        per_output = mean.shape[1:2]
        normals = torch.randn(OUTPUT_SAMPLES // 2, math.prod(per_output) + 1, generator=_generator())
        table = in_pairs(normals).to(mean)
        self.register_buffer("noise", table[:, :-1].reshape(-1, 1, *per_output, *[1] * (mean.ndim - 2)))
        self.register_buffer("in_common", table[:, -1].reshape(-1, *[1] * mean.ndim))
        self.register_buffer("signs", mean.new_ones(()))

        def drawn(like: Tensor) -> Tensor:
            self.signs = torch.randint(0, 2, (1, *like.shape[1:]), generator=_generator()).mul(2).sub(1).to(like)
            return self.signs

        self.likelihood.direction(mean, drawn)

    def _fixed_signs(self, like: Tensor) -> Tensor:
        return self.signs.expand(like.shape)


class _Run:
    """One pass, forward and back."""

    def __init__(self, module: MomentsGraph, x: Tensor) -> None:
        self.module, self.means = module, module.means
        buffers = dict(module.named_buffers())
        self.values: dict[fx.Node, Any] = {node: buffers[node.name] for node in self.means.tensors}
        self.values[self.means.input] = x
        self.ways_back: dict[fx.Node, Back] = {}
        self.entering: list[tuple[fx.Node, Factors]] = []
        self.taken_out: list[tuple[fx.Node, Factors]] = []

    def forward(self) -> Carried:
        """The mean and variance of the output."""
        for node in self.means.steps:
            arguments, options = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
            if node not in self.module.carried:
                assert callable(node.target)
                self.values[node] = node.target(*arguments, **options)
                continue
            rule = self.module.rule_of(node)
            if rule.bends:
                self._take_out(node.all_input_nodes[0])
            value, self.ways_back[node] = rule(*arguments, **options)
            if node in self.module.counted:
                self.entering.append((node, value.fresh()))
                value = value.counted()
            self.values[node] = value
        result: Carried = self.values[self.means.output]
        return result

    def _take_out(self, node: fx.Node) -> None:
        passed = self.values[node].passed
        if passed is not None:
            self.taken_out.append((node, passed))

    def back(self, weights: Tensor) -> Tensor:
        """(B,): the variance of a weighted sum of the outputs."""
        added: list[Tensor] = []
        taken: list[Tensor] = []
        slopes: dict[fx.Node, list[Tensor]] = {self.means.output: [weights]}
        for node in reversed(self.means.steps):
            if node not in slopes:
                continue
            slope = sum_of(slopes.pop(node))
            added += [arriving(slope, *factors) for at, factors in self.entering if at is node]
            taken += [arriving(slope, *factors) for at, factors in self.taken_out if at is node]
            sources = [source for source in node.all_input_nodes if source in self.module.carried]
            if sources:
                for source, part in zip(sources, self.ways_back[node](slope), strict=True):
                    slopes.setdefault(source, []).append(part)
        return sum_of(added) - sum_of(taken) if taken else sum_of(added)


def _rule(node: fx.Node, means: MeanGraph) -> Rule:
    if node.target in _LAYERS:
        return layer_rule(node, means.layers.get(node))
    if node.target not in RULES:
        raise no_rule(node)
    if node.target is aten.relu.default and node.all_input_nodes[0].target is aten.relu.default:
        return Same(node)
    rule = RULES[node.target](node)
    return MaxPoolOfFour(node) if isinstance(rule, MaxPool) and rule.is_of_four else rule


def _pool_first(means: MeanGraph) -> None:
    """Have the largest of a window taken before a ReLU, which leaves fewer elements for the ReLU."""
    for pool in [node for node in means.steps if node.target is aten.max_pool2d.default]:
        relu = pool.args[0]
        if not isinstance(relu, fx.Node) or relu.target is not aten.relu.default or next(iter(relu.users)) is not pool:
            continue
        pool.args = (relu.args[0], *pool.args[1:])
        with means.graph.inserting_after(pool):
            after = means.graph.call_function(aten.relu.default, (pool,))
        after.meta["val"] = pool.meta["val"]
        for user in [user for user in pool.users if user is not after]:
            user.replace_input_with(pool, after)
    means.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))


def _generator() -> torch.Generator:
    """One that is the same for every file."""
    return torch.Generator().manual_seed(0)
