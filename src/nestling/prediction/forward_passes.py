"""Passes through a network at a cut, in eval mode and without gradients, drawing its weights anew for each."""

import dis
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn

from nestling.distributions import Sampling, drawn_from, stream
from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.prediction.likelihoods import Likelihood
from nestling.reading import Cut
from nestling.running import Nested, Reuse, as_call, in_mode
from nestling.running.layers import Stochastic, VariationalLayer, carrying_moments, drawing, sampled_as
from nestling.running.moments import Moments
from nestling.seeding import Purpose, mixed
from nestling.tensor_arguments import real_tensor
from nestling.torch_parts import pytree

CutLike = float | Mapping[str, int] | Cut
_Call = tuple[tuple[Any, ...], dict[str, Any]]
By = Literal["draws", "fast_draws", "moments"]
OUTPUT_DRAWS = 100
"""Draws of outputs whose means and variances are known: they cost next to nothing."""
FOLDED_UP_TO = 16
"""Examples of a batch whose draws run in one pass, over copies of the batch: beyond it, one after another is faster."""
FOLDED_BATCH = 96
"""Examples of such a pass, copies and all, at most."""


@contextmanager
def passes(
    model: nn.Module,
    cut: CutLike | None,
    samples: int,
    seed: int | None,
    likelihood: Likelihood,
    by: By = "draws",
) -> Iterator["Passes"]:
    """Run a network inside the block.

    ``seed`` makes what is drawn reproducible: it comes from a generator of the block's own, in any number of threads.
    """
    _check_samples(samples)
    _check_model(model, cut)
    if by not in get_args(By):
        raise ArgumentError("by", repr(by), f"one of {', '.join(get_args(By))}", "'draws' is exact.")
    draws = samples > 0 and any(isinstance(part, Stochastic) for part in model.modules())
    # Tensors of torch.inference_mode do not say whether they were written to, which what is kept between passes needs.
    with (
        nullcontext() if seed is None else drawn_from(_generator_for(model, seed)),
        torch.inference_mode(False),
        torch.no_grad(),
        in_mode(model, training=False),
        drawing(model) if draws else nullcontext(),
    ):
        if not isinstance(model, Nested):
            yield Passes(model, samples if draws else 0, None, seed, likelihood, by)
            return
        model.forget()
        with model.at(model.cut if cut is None else cut):
            yield Passes(model, samples if draws else 0, model.cut, seed, likelihood, by)


@dataclass(frozen=True)
class Passes:
    """Calls a network on the same inputs with ``num_draws`` draws, or once if there is nothing to draw.

    ``cut`` is where it runs, None for a plain network.
    """

    model: nn.Module
    num_draws: int
    cut: Cut | None
    seed: int | None
    likelihood: Likelihood
    by: By = "draws"

    def __call__(self, x: Any, number: int, *, foreign: bool = False) -> Tensor:  # noqa: ANN401
        """The outputs (S, B, ...) of batch ``number``, in single precision or better.

        With a seed the draws follow from it and the number, whatever ran before; ``foreign`` ones have their own.
        """
        args, kwargs = self._on_device(as_call(x))
        generator = stream()
        if self.seed is not None and generator is not None:
            generator.manual_seed(mixed(Purpose.PREDICTION, self.seed, int(foreign), number))
        size = _batch_size(args, kwargs)
        if self.num_draws == 0:
            return _checked(self.model(*args, **kwargs), number).unsqueeze(0)
        if self.by == "moments" and draws_by_layers(self.model) and not _is_for_inference(self.model):
            outputs = self._carried(args, kwargs, size, number)
            if outputs is not None:
                return outputs
        small = size <= FOLDED_UP_TO
        faster: Sampling = "channel" if small else "shared"
        with sampled_as(self.model, faster) if self.by == "fast_draws" else nullcontext():
            if small and _draws_apart(self.model):
                return self._folded(args, kwargs, size, number)
            return self._one_by_one(args, kwargs, number)

    def _carried(self, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, number: int) -> Tensor | None:
        """Draws of the outputs alone, whose means and variances one pass gives.

        None if operations had to be given draws that do not go together with what comes after.
        """
        with carrying_moments(self.model, self.num_draws, size) as now:
            try:
                output = self.model(*args, **kwargs)
            except RuntimeError as fault:
                if not now.drawn or not _is_torchs(fault):
                    raise
                return None
            if isinstance(output, Moments) and not now.drawn:
                output = output.along(self.likelihood.direction(output.mean_.detach()))
        copies = now.number if now.drawn and len(output) != size else 1
        if isinstance(output, Moments):
            more = max(1, OUTPUT_DRAWS // copies)
            output, copies = output.draws(more), more * copies
        checked = _checked(output, number)
        return checked.reshape(copies, len(checked) // copies, *checked.shape[1:])

    def _one_by_one(self, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Tensor:
        """A pass a draw; where some layers have nothing to draw, those before the first that has run once."""
        memo = Reuse() if _has_plain_layers(self.model) else nullcontext()
        outputs = []
        for _ in range(self.num_draws):
            with memo:
                outputs.append(_checked(self.model(*args, **kwargs), number))
        return torch.stack(outputs)

    def _folded(self, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, number: int) -> Tensor:
        """Several draws in one pass, over as many copies of the batch."""
        outputs: list[Tensor] = []
        while len(outputs) < self.num_draws:
            times = min(self.num_draws - len(outputs), max(1, FOLDED_BATCH // max(size, 1)))
            more_args, more_kwargs = _repeated((args, kwargs), size, times)
            output = self.model(*more_args, **more_kwargs)
            if isinstance(output, Tensor) and (output.ndim == 0 or output.shape[0] != size * times):
                return self._one_by_one(args, kwargs, number)  # its first axis is not the batch
            outputs += [_checked(own, number) for own in (output.chunk(times) if times > 1 else [output])]
        return torch.stack(outputs)

    def _on_device(self, call: _Call) -> _Call:
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            return call
        moved: _Call = pytree.tree_map_only(Tensor, lambda own: _noted(own.to(parameter.device)), call)
        return moved


def _is_torchs(fault: RuntimeError) -> bool:
    """Whether an operation or layer of torch's refused what it was given, rather than the network's own code."""
    *_, last = _frames(fault)
    by_hand = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    where = str(last.tb_frame.f_globals.get("__name__")).partition(".")[0]
    return type(fault) is RuntimeError and (not by_hand or where == "torch")


def _frames(fault: BaseException) -> Iterator[TracebackType]:
    """The traceback of an error from where it was caught to where it was raised."""
    now = fault.__traceback__
    while now is not None:
        yield now
        now = now.tb_next


def draws_by_layers(model: nn.Module) -> bool:
    """Whether all that is drawn are the weights of layers, and these layers run."""
    parts = [part for part in model.modules() if isinstance(part, Stochastic)]
    by_graph = not model.calls_layers if isinstance(model, Nested) else _has_graph(model)
    return not by_graph and all(isinstance(part, VariationalLayer) for part in parts)


def _is_for_inference(model: nn.Module) -> bool:
    """Whether a network was made in torch's inference mode: nothing can be asked about the slopes of its outputs."""
    return any(own.is_inference() for own in (*model.parameters(), *model.buffers()))


def _draws_apart(model: nn.Module) -> bool:
    """Whether the examples of a batch have draws of their own, so that they may as well be copies of one."""
    layers = [part for part in model.modules() if isinstance(part, VariationalLayer)]
    return draws_by_layers(model) and all(part.drawn_as != "shared" for part in layers)


def _has_graph(model: nn.Module) -> bool:
    return any(isinstance(part, fx.GraphModule) for part in model.modules())


def _noted(tensor: Tensor) -> Tensor:
    """A tensor that says whether it was written to."""
    return tensor.clone() if tensor.is_inference() else tensor


def _repeated(call: _Call, size: int, times: int) -> _Call:
    """A call whose batch is there several times, one copy after the other."""

    def copies(tensor: Tensor) -> Tensor:
        has_batch = tensor.ndim > 0 and tensor.shape[0] == size
        return tensor.repeat(times, *[1] * (tensor.ndim - 1)) if has_batch else tensor

    repeated: _Call = pytree.tree_map_only(Tensor, copies, call)
    return repeated


def _batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The length of the first axis of the first tensor that has one."""
    leaves = pytree.tree_leaves((args, kwargs))
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), 0)


def _has_plain_layers(model: nn.Module) -> bool:
    """Whether a network has matrices that are not drawn."""
    drawn = {id(own) for part in model.modules() if isinstance(part, VariationalLayer) for own in part.parameters()}
    return any(own.ndim > 1 and id(own) not in drawn for own in model.parameters())


def _checked(output: Any, number: int) -> Tensor:  # noqa: ANN401
    """An output that is a tensor of finite numbers."""
    name = f"output of batch {number}"
    if not isinstance(output, Tensor):
        given = f"a {type(output).__name__}"
        raise DtypeError(name, given, "a tensor", "Wrap the network in a module that picks one out.")
    real_tensor(name, output)
    return output.to(torch.promote_types(output.dtype, torch.float32))


def _generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """A generator where the network is."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RangeError("seed", repr(seed), "a whole number of at least 0, or None", "Pass an int.")
    return torch.Generator(next((own.device for own in model.parameters()), torch.device("cpu")))


def _check_samples(samples: int) -> None:
    if isinstance(samples, bool) or not isinstance(samples, int):
        raise DtypeError("samples", repr(samples), "a whole number", "Pass how many times to draw the weights.")
    if samples < 0:
        raise RangeError("samples", samples, "at least 0", "0 uses the mean weights, once; 6 is what the papers use.")


def _check_model(model: object, cut: CutLike | None) -> None:
    if not isinstance(model, nn.Module):
        raise DtypeError("model", f"a {type(model).__name__}", "a nested network or an nn.Module", "Pass the network.")
    if cut is not None and not isinstance(model, Nested):
        raise ArgumentError("cut", cut, "None for a plain network", "Only what nest(...) gives can be cut.")
