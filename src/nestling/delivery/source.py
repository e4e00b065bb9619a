"""What is delivered: a plain network on the CPU, its example, and what is known about it, from whatever was given."""

import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.about import Known
from nestling.delivery.options import Layout
from nestling.errors import ArgumentError, DtypeError, ShapeError, TraceError
from nestling.prediction import CutLike, Likelihood, likelihood_for, likelihood_named
from nestling.pruning import Pruned, to_dense
from nestling.reading import Cut, full_cut, make_cut
from nestling.running import Call, Cost, Nested, as_call, cost, cost_of, extract
from nestling.torch_parts import pytree
from nestling.training import Run


@dataclass(frozen=True)
class Source:
    """A plain ``network`` in eval mode, in single precision on the CPU, with a call of it.

    ``nested`` and ``cut`` say what it was cut from. ``layout`` and ``as_bytes`` are the form of the inputs that the
    file will take, where the data are known.
    """

    network: nn.Module
    example: Call
    known: Known
    nested: Nested | None
    cut: Cut | None
    asked: CutLike | None
    layout: Layout
    as_bytes: bool

    @property
    def is_whole(self) -> bool:
        """Whether there is no larger network to compare it with."""
        return self.nested is None or self.cut == full_cut(self.nested.groups)

    @property
    def cost(self) -> Cost:
        """Parameters, multiply-adds and bytes of the network."""
        if self.nested is not None and self.cut is not None:
            return cost(self.nested, self.cut)
        try:
            return cost_of(self.network, self.example)
        except Exception as error:  # of the network's own code
            problem = f"the network can't run one example by itself ({' '.join(str(error).split())[:200]})"
            raise TraceError(f"{problem}, and a file takes batches of any size. Pass an example of one.") from error

    def at(self, cut: Cut, asked: CutLike) -> "Source":
        """The same at another cut; what is known stays as it is, for a graph of the same kind."""
        assert self.nested is not None
        return replace(self, network=_delivered(self.nested.extracted(cut)), cut=cut, asked=asked)

    def whole(self) -> "Source":
        """The same at full width."""
        assert self.nested is not None
        return self.at(full_cut(self.nested.groups), 1.0)


def source_of(
    network: nn.Module | Pruned | Run,
    example: Any,  # noqa: ANN401
    cut: CutLike | None,
    known: Known,
    layout: Layout,
    as_bytes: bool | None,
) -> Source:
    """The source from a run, a nested or pruned network, or a plain module with an example."""
    if layout not in ("nchw", "nhwc"):
        raise ArgumentError("layout", repr(layout), "nchw or nhwc", "nhwc has the channels last.")
    if isinstance(network, Run):
        network = network.nested
    nested: Nested | None = None
    wanted: Cut | None = None
    if isinstance(network, Nested):
        wanted = make_cut(network.groups, 1.0 if cut is None else cut)
        if example is not None:
            raise ArgumentError("example", "one", "left out for a nested network", "It has its own.")
        plain, call, nested = extract(network, wanted), network.example, network
    else:
        plain, call = _plain(network, example)
        if cut is not None:
            raise ArgumentError("cut", repr(cut), "left out for a plain network", "Nest it to cut it.")
    calls = _on_cpu(call)
    if known.normalises:
        _check_shape(calls, known.data["input_shape"])
    bytes_in = bool(known.data.get("as_bytes")) if as_bytes is None else as_bytes
    _check_form(known, layout, as_bytes)
    return Source(_delivered(plain), calls, known, nested, wanted, cut, layout, bytes_in)


def as_known(network: nn.Module | Pruned | Run, given: Known, cut: CutLike | None) -> Known:
    """What is known, completed by what a run or a network knows of itself."""
    if isinstance(network, Run):
        data = given.data or (network.data if network.data.get("name") is not None else {})
        calibration = given.calibration or network.calibration(1.0 if cut is None else cut)
        likelihood = given.likelihood or likelihood_for(network.nested, network.likelihood)
        return Known(data, likelihood, calibration, given.run or network.identity)
    if given.likelihood is not None:
        return given
    if isinstance(network, Nested | Pruned) and isinstance(network.likelihood, Likelihood):
        return replace(given, likelihood=network.likelihood)
    if given.calibration is not None:
        return replace(given, likelihood=likelihood_named(given.calibration.likelihood))
    return replace(given, likelihood=likelihood_named("categorical")) if given.data.get("classes") else given


def _plain(network: object, example: Any) -> tuple[nn.Module, Call]:  # noqa: ANN401
    if isinstance(network, Pruned):
        return to_dense(network.network), network.trained.example if example is None else as_call(example)
    if not isinstance(network, nn.Module):
        needed = "a module, a nested or pruned network, or a run"
        raise DtypeError("network", f"a {type(network).__name__}", needed, "Open a run with nl.open_run.")
    if example is None:
        raise ArgumentError("example", "none", "a batch of inputs for a plain module", "Pass a tensor of two examples.")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of torch's own, for exported programs
        return deepcopy(network), as_call(example)


def _delivered(network: nn.Module) -> nn.Module:
    """The network as files have it: on the CPU, in single precision, without a random draw of eval mode."""
    return network.cpu().float().eval().requires_grad_(False)


def _on_cpu(call: Call) -> Call:
    def moved(tensor: Tensor) -> Tensor:
        here = tensor.detach().cpu()
        return here.float() if here.is_floating_point() else here

    moved_call: Call = pytree.tree_map_only(Tensor, moved, call)
    return moved_call


def _check_form(known: Known, layout: Layout, as_bytes: bool | None) -> None:
    """Refuse a form of inputs that the data do not have, or that nothing is known of."""
    if layout == "nhwc" and (not known.normalises or len(known.data["input_shape"]) != 3):
        raise ArgumentError("layout", "nhwc", "left out for inputs that are not known to be images", "Pass data=.")
    if as_bytes is not None and not known.normalises:
        raise ArgumentError("as_bytes", as_bytes, "left out where the data are not known", "Pass data=.")
    if as_bytes and not known.data.get("as_bytes"):
        needed = "left out for a network that was trained on numbers, whose scale no byte tells"
        raise ArgumentError("as_bytes", as_bytes, needed, "Give the file numbers on the scale of the training data.")


def _check_shape(call: Call, shape: Any) -> None:  # noqa: ANN401
    """The network takes one tensor, of the shape that the data have."""
    tensors = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]
    if len(tensors) != 1 or list(tensors[0].shape[1:]) != list(shape):
        given = ", ".join(str(tuple(tensor.shape[1:])) for tensor in tensors)
        needed = f"one tensor of shape {tuple(shape)} per example, as the data are"
        raise ShapeError("data", f"a network that takes {given}", needed, "Pass the data that it was trained on.")
