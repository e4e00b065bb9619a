"""What draws in a network, and how it is told to: by what holds in a thread or asyncio task, not by its attributes."""

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
    """How a stochastic part runs now, beside its attributes: whether it draws in eval mode too, or carries moments.

    ``sampling`` is for layers whose own is "local"; None leaves them as they are.
    """

    draws: bool = False
    sampling: Sampling | None = None
    carries: bool = False


_ORDINARY = Mode()
_modes: ContextVar[Mapping[int, Mode]] = ContextVar("modes", default={})  # noqa: B039  # never written to
"""The modes that are not ordinary in this thread or task, by the identity of the part."""


class Stochastic(nn.Module):
    """A part of a network that draws in train mode and takes means in eval mode, unless ``noisy`` says otherwise."""

    noisy: bool | None = None

    @property
    def mode(self) -> Mode:
        """How it runs now."""
        return _modes.get().get(_identity(self), _ORDINARY)

    @property
    def draws(self) -> bool:
        """Whether it draws now: inside ``drawing``, and in train mode unless ``noisy`` has been set."""
        return self.mode.draws or (self.training if self.noisy is None else self.noisy)


@contextmanager
def drawing(module: nn.Module) -> Iterator[nn.Module]:
    """Draw whatever a module can draw inside the block, in eval mode too: weights and gates."""
    with _changed(module, draws=True):
        yield module


@contextmanager
def sampled_as(module: nn.Module, sampling: Sampling) -> Iterator[None]:
    """Let layers whose examples draw noise of their own draw as is said inside the block, evenly; others stay."""
    with _changed(module, sampling=sampling):
        yield


@contextmanager
def carrying_moments(module: nn.Module, draws: int, size: int) -> Iterator[Carrying]:
    """Let variational layers give moments inside the block, for a batch of a size.

    An operation that can't take them gets so many draws.
    """
    with _changed(module, carries=True), carrying(Carrying(draws, size)) as now:
        yield now


def check_sampling(sampling: Sampling) -> None:
    """Refuse a way of drawing weights that there is not."""
    if sampling not in SAMPLINGS:
        raise ArgumentError("sampling", repr(sampling), f"one of {', '.join(SAMPLINGS)}", "'local' trains best.")


@contextmanager
def _changed(module: nn.Module, **changes: bool | Sampling) -> Iterator[None]:
    """Run the stochastic parts of a module in another mode inside the block."""
    now = _modes.get()
    parts = (part for part in module.modules() if isinstance(part, Stochastic))
    changed = {own: replace(now.get(own, _ORDINARY), **changes) for own in map(_identity, parts)}  # type: ignore[arg-type]
    token = _modes.set({**now, **changed})
    try:
        yield
    finally:
        _modes.reset(token)


def _identity(part: nn.Module) -> int:
    """What a part is known by: a twin's by the identity of the part that it stands for."""
    identity: int = vars(part).get(STANDS_FOR, id(part))
    return identity
