"""Passes through a network at a cut, in eval mode and without gradients, each with newly drawn weights."""

import dis
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, fx, nn

from nestling.distributions import Sampling, drawn_from, stream
from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.prediction.likelihood import Likelihood
from nestling.reading import Cut
from nestling.running import Call, Nested, Read, Reuse, as_call, in_mode, picked
from nestling.running.layers import (
    Stochastic,
    VariationalLayer,
    carrying_moments,
    drawing,
    sampled_as,
    variational_layers,
)
from nestling.running.moments import Moments
from nestling.seeding import Purpose, mixed
from nestling.tensor_arguments import real_tensor
from nestling.torch_parts import pytree

CutLike = float | Mapping[str, int] | Cut
By = Literal["draws", "fast_draws", "moments"]

OUTPUT_SAMPLES = 100
"""The number of samples of outputs whose means and variances are known: these samples cost next to nothing."""
FOLDED_UP_TO = 16
"""Up to this batch size all samples run in one pass, over copies of the batch; above, one after another is faster."""
FOLDED_BATCH = 96
"""The largest number of examples in such a pass, over all copies."""


class Passing(TypedDict, total=False):
    """The options that ``evaluate`` and ``calibrate`` share."""

    samples: int
    likelihood: str | Likelihood | None
    seed: int | None
    spread: bool
    by: By
    batch: Read | None


@contextmanager
def passes(
    network: nn.Module, cut: CutLike | None, samples: int, seed: int | None, likelihood: Likelihood, by: By = "draws"
) -> Iterator["Passes"]:
    """Prepare a network to be run within a ``with`` statement.

    ``seed`` makes the samples reproducible in any number of threads: each ``with`` statement has its own generator.
    """
    _check_samples(samples)
    _check_network(network, cut)
    if by not in get_args(By):
        raise ArgumentError("by", repr(by), f"one of {', '.join(get_args(By))}", "'draws' is exact.")
    is_drawn = samples > 0 and any(isinstance(module, Stochastic) for module in network.modules())
    # Results are kept between passes until a tensor is written to, and tensors of torch.inference_mode hide writes.
    with (
        nullcontext() if seed is None else drawn_from(_generator_for(network, seed)),
        torch.inference_mode(False),
        torch.no_grad(),
        in_mode(network, training=False),
        drawing(network) if is_drawn else nullcontext(),
    ):
        if not isinstance(network, Nested):
            yield Passes(network, samples if is_drawn else 0, None, seed, likelihood, by)
            return
        network.forget()
        with network.at(network.cut if cut is None else cut):
            yield Passes(network, samples if is_drawn else 0, network.cut, seed, likelihood, by)


@dataclass(frozen=True)
class Passes:
    """Calls a network on the same inputs with ``num_samples`` weight samples, or once if it has nothing to draw.

    ``cut`` is the cut that it runs at, None for a plain network.
    """

    network: nn.Module
    num_samples: int
    cut: Cut | None
    seed: int | None
    likelihood: Likelihood
    by: By = "draws"

    def __call__(self, x: Any, number: int, *, foreign: bool = False) -> Tensor:  # noqa: ANN401
        """The outputs (S, B, ...) of batch ``number``, in single precision or better.

        With a seed the samples depend only on the seed, the number, and whether the batch is ``foreign``
        (out-of-distribution).
        """
        args, kwargs = self._on_device(as_call(x))
        generator = stream()
        if self.seed is not None and generator is not None:
            generator.manual_seed(mixed(Purpose.PREDICTION, self.seed, int(foreign), number))
        size = _batch_size(args, kwargs)
        if self.num_samples == 0:
            return _checked(self._output(args, kwargs), number).unsqueeze(0)
        if self.by == "moments" and carries_moments(self.network) and not _is_for_inference(self.network):
            outputs = self._by_moments(args, kwargs, size, number)
            if outputs is not None:
                return outputs
        small = size <= FOLDED_UP_TO
        faster: Sampling = "channel" if small else "shared"
        with sampled_as(self.network, faster) if self.by == "fast_draws" else nullcontext():
            if small and _draws_apart(self.network):
                return self._folded(args, kwargs, size, number)
            return self._one_by_one(args, kwargs, number)

    def _by_moments(self, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, number: int) -> Tensor | None:
        """Samples of the outputs, from the means and variances that one pass gives.

        None if some operations had to be given samples, and a later operation failed on them.
        """
        with carrying_moments(self.network, self.num_samples, size) as carried:
            try:
                output = self._output(args, kwargs)
            except (RuntimeError, ArgumentError) as error:  # the latter where inputs are not as large as the example's
                fault = (isinstance(error, ArgumentError) and error.__cause__) or error
                if not carried.drawn or not _is_raised_by_torch(fault):
                    raise
                return None
            if isinstance(output, Moments) and not carried.drawn:
                output = output.along(self.likelihood.direction(output.mean_.detach()))
        copies = carried.number if carried.drawn and len(output) != size else 1
        if isinstance(output, Moments):
            num_drawn = max(1, OUTPUT_SAMPLES // copies)
            output, copies = output.draw(num_drawn), num_drawn * copies
        checked = _checked(output, number)
        return checked.reshape(copies, len(checked) // copies, *checked.shape[1:])

    def _one_by_one(self, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Tensor:
        """One pass per sample; if some layers have nothing to draw, those before the first that draws run once."""
        memo = Reuse() if _has_plain_layers(self.network) else nullcontext()
        outputs = []
        for _ in range(self.num_samples):
            with memo:
                outputs.append(_checked(self._output(args, kwargs), number))
        return torch.stack(outputs)

    def _folded(self, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, number: int) -> Tensor:
        """Several samples in one pass, over one copy of the batch per sample."""
        outputs: list[Tensor] = []
        while len(outputs) < self.num_samples:
            copies = min(self.num_samples - len(outputs), max(1, FOLDED_BATCH // max(size, 1)))
            repeated_args, repeated_kwargs = _repeated((args, kwargs), size, copies)
            output = self._output(repeated_args, repeated_kwargs)
            if isinstance(output, Tensor) and (output.ndim == 0 or output.shape[0] != size * copies):
                return self._one_by_one(args, kwargs, number)  # its first axis is not the batch
            outputs += [_checked(part, number) for part in (output.chunk(copies) if copies > 1 else [output])]
        return torch.stack(outputs)

    def _output(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """What the network returns, or the logits in it."""
        return picked(self.network(*args, **kwargs))

    def _on_device(self, call: Call) -> Call:
        parameter = next(self.network.parameters(), None)
        if parameter is None:
            return call
        moved: Call = pytree.tree_map_only(Tensor, lambda tensor: _noting_writes(tensor.to(parameter.device)), call)
        return moved


def _is_raised_by_torch(fault: BaseException) -> bool:
    """Whether an operation or layer of torch's raised an error, rather than the network's own code."""
    *_, last = _frames(fault)
    by_hand = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    package = str(last.tb_frame.f_globals.get("__name__")).partition(".")[0]
    return type(fault) is RuntimeError and (not by_hand or package == "torch")


def _frames(fault: BaseException) -> Iterator[TracebackType]:
    """The traceback of an error from where it was caught to where it was raised."""
    frame = fault.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def carries_moments(network: nn.Module) -> bool:
    """Whether the weights of layers are all that is drawn, and code calls them, whose operations moments replace."""
    has_graph = network.plan is not None if isinstance(network, Nested) else _has_graph(network)
    return not has_graph and _draws_by_layers(network)


def _draws_by_layers(network: nn.Module) -> bool:
    """Whether the weights of layers are all that is drawn, and every layer draws for itself."""
    drawing_modules = [module for module in network.modules() if isinstance(module, Stochastic)]
    by_graph = not network.calls_layers if isinstance(network, Nested) else _has_graph(network)
    return not by_graph and all(isinstance(module, VariationalLayer) for module in drawing_modules)


def _is_for_inference(network: nn.Module) -> bool:
    """Whether a network was made in torch's inference mode, in which outputs have no gradients."""
    return any(tensor.is_inference() for tensor in (*network.parameters(), *network.buffers()))


def _draws_apart(network: nn.Module) -> bool:
    """Whether each example of a batch has its own weight sample, so that copies of one example have different ones."""
    return _draws_by_layers(network) and all(
        layer.drawn_as != "shared" for layer in variational_layers(network).values()
    )


def _has_graph(network: nn.Module) -> bool:
    return any(isinstance(module, fx.GraphModule) for module in network.modules())


def _noting_writes(tensor: Tensor) -> Tensor:
    """A tensor that counts writes to it: one made in inference mode does not, and is copied."""
    return tensor.clone() if tensor.is_inference() else tensor


def _repeated(call: Call, size: int, times: int) -> Call:
    """A call with several copies of its batch, one after the other."""

    def copies(tensor: Tensor) -> Tensor:
        has_batch = tensor.ndim > 0 and tensor.shape[0] == size
        return tensor.repeat(times, *[1] * (tensor.ndim - 1)) if has_batch else tensor

    repeated: Call = pytree.tree_map_only(Tensor, copies, call)
    return repeated


def _batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The length of the first axis of the first tensor that has one."""
    leaves = pytree.tree_leaves((args, kwargs))
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), 0)


def _has_plain_layers(network: nn.Module) -> bool:
    """Whether a network has matrices that are not drawn."""
    drawn = {id(parameter) for layer in variational_layers(network).values() for parameter in layer.parameters()}
    return any(parameter.ndim > 1 and id(parameter) not in drawn for parameter in network.parameters())


def _checked(output: Any, number: int) -> Tensor:  # noqa: ANN401
    """The output, checked to be a tensor of finite numbers."""
    name = f"output of batch {number}"
    if not isinstance(output, Tensor):
        given = f"a {type(output).__name__}"
        raise DtypeError(name, given, "a tensor", "Choose one with nest(..., output=).")
    real_tensor(name, output)
    return output.to(torch.promote_types(output.dtype, torch.float32))


def _generator_for(network: nn.Module, seed: int) -> torch.Generator:
    """A seeded generator on the device of the network."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RangeError("seed", repr(seed), "a whole number of at least 0, or None", "Pass an int.")
    return torch.Generator(next((parameter.device for parameter in network.parameters()), torch.device("cpu")))


def _check_samples(samples: int) -> None:
    if isinstance(samples, bool) or not isinstance(samples, int):
        raise DtypeError("samples", repr(samples), "a whole number", "Pass how many times to draw the weights.")
    if samples < 0:
        raise RangeError("samples", samples, "at least 0", "0 uses the mean weights, once; 6 is what the papers use.")


def _check_network(network: object, cut: CutLike | None) -> None:
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise DtypeError("model", f"a {kind}", "a nested network or an nn.Module", "Pass the network.")
    if cut is not None and not isinstance(network, Nested):
        raise ArgumentError("cut", cut, "None for a plain network", "Only what nest(...) gives can be cut.")
