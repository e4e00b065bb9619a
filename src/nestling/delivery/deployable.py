"""The module that goes into a file: from inputs as a user has them to answers in the user's terms."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.formats import Port
from nestling.errors import ArgumentError, DtypeError
from nestling.prediction import Likelihood
from nestling.running import Call
from nestling.runtime import BATCH
from nestling.torch_parts import pytree

BYTE = 255.0
"""The largest value of a byte, which is 1 on the scale of the mean and the standard deviation."""


class Deployable(nn.Module):
    """``normalise``, then the network, then ``answer``: each may be left out.

    Inputs after the first go to the network as they are.
    """

    def __init__(self, network: nn.Module, normalise: nn.Module | None = None, answer: nn.Module | None = None) -> None:
        super().__init__()
        self.normalise = normalise or nn.Identity()
        self.network = network
        self.answer = answer or nn.Identity()

    def forward(self, inputs: Tensor, *others: Tensor) -> Any:  # noqa: ANN401
        """The outputs in the order of their names."""
        return self.answer(self.network(self.normalise(inputs), *others))


class Normalise(nn.Module):
    """Inputs as a user has them, as a network takes them: channels first, and (x - mean) / std of [0, 1]."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], num_axes: int, *, as_bytes: bool, last: bool
    ) -> None:
        super().__init__()
        shape = (1, -1) + (1,) * (num_axes - 2)
        means, stds = (torch.tensor(values, dtype=torch.float64).view(shape) for values in (mean, std))
        self.last = last
        self.factor = nn.Buffer((1 / (stds * (BYTE if as_bytes else 1.0))).float())
        self.shift = nn.Buffer((-means / stds).float())

    def forward(self, inputs: Tensor) -> Tensor:
        """The normalised inputs (B, C, ...) of bytes or numbers, whose channels may come last."""
        if self.last:  # laid out anew, also a single channel, which convolutions would take for channels that come last
            inputs = inputs.movedim(-1, 1).clone(memory_format=torch.contiguous_format)
        return inputs.float() * self.factor + self.shift


class Answer(nn.Module):
    """An output of a network as its likelihood reads it, with a temperature, as a tuple in the order of ``names``.

    A temperature that differs between the calls of a file is the result of a function.
    """

    def __init__(self, likelihood: Likelihood, temperature: float | Callable[[], Tensor], output: Tensor) -> None:
        super().__init__()
        self.likelihood = likelihood.settled().requires_grad_(False).cpu()
        self.temperature = temperature
        self.names = tuple(self.likelihood.answers(output, 1.0))

    def forward(self, output: Tensor) -> tuple[Tensor, ...]:
        """The named answers (B, ...)."""
        temperature = self.temperature() if callable(self.temperature) else self.temperature
        return tuple(self.likelihood.answers(output, temperature).values())


class Called(nn.Module):
    """A network whose inputs are the tensors of a call, wherever they stand in it, and whose outputs are tensors."""

    def __init__(self, network: nn.Module, call: Call) -> None:
        super().__init__()
        self.network = network
        leaves, self._spec = pytree.tree_flatten(call)
        self._leaves = [_INPUT if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: Tensor) -> Any:  # noqa: ANN401
        """The network's output, as a tuple of tensors if it is no tensor."""
        given = iter(tensors)
        leaves = [next(given) if leaf is _INPUT else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        output = self.network(*args, **kwargs)
        return output if isinstance(output, Tensor) else tuple(_named(output).values())


_INPUT = object()
"""Stands where a call has a tensor."""


def output_names(output: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Names for the tensors of what a network returned."""
    return tuple(_named(output))


def ports_of(network: nn.Module, call: Call) -> tuple[Port, ...]:
    """The inputs of a plain network: each tensor of a call, under the name that the network's code has for it."""
    args, kwargs = call
    parameters = inspect.signature(network.forward).parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {positional[n] if n < len(positional) else f"input_{n}": value for n, value in enumerate(args)} | kwargs
    inputs: dict[str, Tensor] = {}
    for name, value in named.items():
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
        inputs |= {name if len(tensors) == 1 else f"{name}_{n}": tensor for n, tensor in enumerate(tensors)}
    if not inputs:
        raise ArgumentError("example", "no tensor", "an input of the network", "Pass the tensors of a call.")
    size = next((tensor.shape[0] for tensor in inputs.values() if tensor.ndim), None)
    return tuple(
        Port(name, tensor, {0: BATCH} if tensor.ndim and tensor.shape[0] == size else {})
        for name, tensor in inputs.items()
    )


def _named(output: Any) -> dict[str, Tensor]:  # noqa: ANN401
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        tensors_by_name = {str(name): value for name, value in output.items() if isinstance(value, Tensor)}
    else:
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        tensors_by_name = {f"output_{number}": tensor for number, tensor in enumerate(tensors)}
    if not tensors_by_name:
        needed, advice = "a network that returns tensors", "Pick a tensor with nest(..., output=)."
        raise DtypeError("network", f"one that returns a {type(output).__name__}", needed, advice)
    return tensors_by_name
