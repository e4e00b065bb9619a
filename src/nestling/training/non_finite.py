"""Finds the first value that is not finite, once a loss or a gradient is not."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import DivergenceError
from nestling.reading import Cut
from nestling.running import Nested, as_call, inputs_of
from nestling.running.layers import VariationalLayer
from nestling.tensor_arguments import HALF_ENDS
from nestling.torch_parts import pytree

_SLOWER = "Lower lr, lengthen lr_warm_up and kl_warm_up, or let step_back do it."
_CLEAN = "Clean the data: drop or fill such examples."


def diverged(nested: Nested, batch: tuple[Any, Tensor], cuts: tuple[Cut, ...], step: int) -> DivergenceError:
    """The error that names the first of data, weights, activations and gradients that is not finite."""
    for name, data in zip(("inputs", "targets"), batch, strict=True):
        if any(_is_bad(leaf) for leaf in pytree.tree_leaves(data)):
            return DivergenceError(step, f"the {name} of the batch", _CLEAN, in_data=True)
    error = weights_gone_wrong(nested, step)
    if error is not None:
        return error
    slower = _slower(nested)
    layer = _first_layer(nested, batch[0], cuts)
    if layer is not None:
        return DivergenceError(step, f"the output of layer {layer}" if layer else "the network's output", slower)
    for name, parameter in nested.named_parameters():
        if parameter.grad is not None and _is_bad(parameter.grad):
            return DivergenceError(step, f"the gradient of {_public(name)}", slower)
    return DivergenceError(step, "the loss", f"Check that targets fit the likelihood. {slower}")


def weights_gone_wrong(nested: Nested, step: int) -> DivergenceError | None:
    """The error that names weights that are not finite; None if all are finite."""
    for name, parameter in nested.named_parameters():
        if _is_bad(parameter):
            return DivergenceError(step, f"the weights {_public(name)}", _slower(nested))
    return None


def diverged_in_validation(batches: Iterable[Any], step: int) -> DivergenceError:
    """The error for a non-finite output on validation data; it names the first batch with non-finite inputs."""
    for number, batch in enumerate(batches):
        if any(_is_bad(leaf) for leaf in pytree.tree_leaves(inputs_of(batch))):
            return DivergenceError(step, f"the inputs of validation batch {number}", _CLEAN, in_data=True)
    return DivergenceError(step, "the network's output on validation data", _SLOWER)


def _slower(nested: Nested) -> str:
    """What to do about numbers that grow too large, which in half precision they do soon."""
    half = any(tensor.dtype == torch.float16 for tensor in nested.tensors().values())
    return f"{HALF_ENDS} {_SLOWER}" if half else _SLOWER


def _first_layer(nested: Nested, inputs: Any, cuts: tuple[Cut, ...]) -> str | None:  # noqa: ANN401
    """The first layer, in the order of execution, with a non-finite output for the batch at one of the cuts."""
    bad_layers: list[str] = []

    def record(name: str, output: object) -> None:
        if any(_is_bad(leaf) for leaf in pytree.tree_leaves(output)):
            bad_layers.append(name)

    leaves = list(_leaves(nested.module))
    handles = [
        layer.register_forward_hook(lambda _module, _args, output, name=name: record(name, output))
        for name, layer in leaves
    ]
    args, kwargs = as_call(inputs)
    try:
        with torch.no_grad():
            for cut in cuts:
                with nested.at(cut):
                    output = nested(*args, **kwargs)
                    record("", output)
                if bad_layers == [""]:  # the network ran as a graph, which skips the hooks: run its layers
                    nested.module(*args, **kwargs)
                if bad_layers:
                    return next((name for name in bad_layers if name), "")
    finally:
        for handle in handles:
            handle.remove()
    return None


def _leaves(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of a module by name; a variational layer counts as one layer, with all its submodules."""
    children = list(module.named_children())
    if isinstance(module, VariationalLayer) or not children:
        yield prefix.rstrip("."), module
        return
    for name, child in children:
        yield from _leaves(child, f"{prefix}{name}.")


def _is_bad(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(torch.isfinite(leaf).all())


def _public(name: str) -> str:
    return name.removeprefix("module.").replace("_orders.", "of order ")
