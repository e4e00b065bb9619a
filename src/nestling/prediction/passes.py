"""Passes through a network at a cut, in eval mode and without gradients, drawing its weights anew for each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nestling.arguments import real_tensor
from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.network.cut import Cut
from nestling.network.layers import Stochastic, drawing
from nestling.network.modes import in_mode
from nestling.network.nest import as_call
from nestling.network.nested import Nested
from nestling.seeding import Purpose, reseed

CutLike = float | Mapping[str, int] | Cut


@contextmanager
def passes(model: nn.Module, cut: CutLike | None, samples: int, seed: int | None) -> Iterator["Passes"]:
    """Run a network inside the block; ``seed`` makes it reproducible and leaves torch's random state as it was."""
    _check_samples(samples)
    _check_model(model, cut)
    draws = samples > 0 and any(isinstance(part, Stochastic) for part in model.modules())
    with _kept(seed), torch.no_grad(), in_mode(model, training=False), drawing(model) if draws else nullcontext():
        if not isinstance(model, Nested):
            yield Passes(model, samples if draws else 1, None, seed)
            return
        with model.at(model.cut if cut is None else cut):
            yield Passes(model, samples if draws else 1, model.cut, seed)


@dataclass(frozen=True)
class Passes:
    """Calls a network ``num_passes`` times on the same inputs; ``cut`` is where it runs, None for a plain network."""

    model: nn.Module
    num_passes: int
    cut: Cut | None
    seed: int | None

    def __call__(self, x: Any, number: int, *, foreign: bool = False) -> Tensor:  # noqa: ANN401
        """The outputs (S, B, ...) of batch ``number``, in single precision or better.

        With a seed the draws follow from it and the number, whatever ran before; ``foreign`` ones have their own.
        """
        args, kwargs = self._on_device(as_call(x))
        if self.seed is not None:
            device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
            reseed(device, Purpose.PREDICTION, self.seed, int(foreign), number)
        return torch.stack([_checked(self.model(*args, **kwargs), number) for _ in range(self.num_passes)])

    def _on_device(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            return call
        moved: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
            Tensor, lambda tensor: tensor.to(parameter.device), call
        )
        return moved


def _checked(output: Any, number: int) -> Tensor:  # noqa: ANN401
    """An output that is a tensor of finite numbers."""
    name = f"output of batch {number}"
    if not isinstance(output, Tensor):
        given = f"a {type(output).__name__}"
        raise DtypeError(name, given, "a tensor", "Wrap the network in a module that picks one out.")
    real_tensor(name, output)
    return output.to(torch.promote_types(output.dtype, torch.float32))


@contextmanager
def _kept(seed: int | None) -> Iterator[None]:
    """Leave torch's random state as it was, where there is a seed to draw from instead."""
    if seed is None:
        yield
        return
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RangeError("seed", repr(seed), "a whole number of at least 0, or None", "Pass an int.")
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        yield


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
