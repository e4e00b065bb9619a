"""Submodules that draw, and the modes they draw in, which belong to a thread or asyncio task and not to the module."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from torch import nn

from nestling.distributions import SAMPLINGS, Sampling
from nestling.errors import ArgumentError
from nestling.running.moments import Carrying, carrying
from nestling.running.twin import STANDS_FOR


@dataclass(frozen=True)
class Mode:
    """How a stochastic submodule runs now: whether it draws in eval mode too, and whether it carries moments.

    ``sampling`` replaces the sampling of layers with "local" sampling; None does not.
    """

    is_drawing: bool = False
    sampling: Sampling | None = None
    carries: bool = False


_ORDINARY = Mode()
_modes: ContextVar[Mapping[int, Mode]] = ContextVar("modes", default={})  # noqa: B039  # never written to
"""The modes that are not ordinary in this thread or task, by the identity of the submodule."""


class Stochastic(nn.Module):
    """A submodule that draws in train mode and takes means in eval mode, unless ``noisy`` is set."""

    noisy: bool | None = None

    @property
    def mode(self) -> Mode:
        """The mode in which it runs now."""
        return _modes.get().get(_identity(self), _ORDINARY)

    @property
    def is_drawing(self) -> bool:
        """Whether it draws now: inside ``drawing``, and as ``noisy`` says or, if that is None, in train mode."""
        return self.mode.is_drawing or (self.training if self.noisy is None else self.noisy)


@contextmanager
def drawing(module: nn.Module) -> Iterator[nn.Module]:
    """Inside the ``with`` statement draw weights and gates in eval mode too."""
    with _in_changed_mode(module, is_drawing=True):
        yield module


@contextmanager
def sampled_as(module: nn.Module, sampling: Sampling) -> Iterator[None]:
    """Inside the ``with`` statement layers with "local" sampling draw in this way, with even variances."""
    with _in_changed_mode(module, sampling=sampling):
        yield


@contextmanager
def carrying_moments(module: nn.Module, num_draws: int, size: int) -> Iterator[Carrying]:
    """Inside the ``with`` statement variational layers return moments, for a batch of this size.

    An operation without a rule for moments gets this many draws.
    """
    with _in_changed_mode(module, carries=True), carrying(Carrying(num_draws, size)) as settings:
        yield settings


def check_sampling(sampling: Sampling) -> None:
    """Refuse an unknown way of drawing weights."""
    if sampling not in SAMPLINGS:
        raise ArgumentError("sampling", repr(sampling), f"one of {', '.join(SAMPLINGS)}", "'local' trains best.")


@contextmanager
def _in_changed_mode(module: nn.Module, **changes: bool | Sampling) -> Iterator[None]:
    """Inside the ``with`` statement run the stochastic submodules of a module in another mode."""
    modes = _modes.get()
    identities = [_identity(submodule) for submodule in module.modules() if isinstance(submodule, Stochastic)]
    changed = {key: replace(modes.get(key, _ORDINARY), **changes) for key in identities}  # type: ignore[arg-type]
    token = _modes.set({**modes, **changed})
    try:
        yield
    finally:
        _modes.reset(token)


def _identity(submodule: nn.Module) -> int:
    """The identity of a submodule; in a twin, the identity of the submodule that it stands for."""
    identity: int = vars(submodule).get(STANDS_FOR, id(submodule))
    return identity
