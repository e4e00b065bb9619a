"""The cuts that a network was last asked for, with the smaller tensors that are kept, and the cut that runs now."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor, nn

from nestling.reading import Cut, Groups, make_cut
from nestling.running.runner import REMEMBERED_CUTS, BoundNetwork, Runner

KEPT_CUTS = 4
"""The smaller tensors of this many cuts are kept, so that going back and forth between cuts costs nothing."""
_KEEPING = threading.Lock()
"""Held while a network looks up the cuts that it keeps."""


class PreparedCut:
    """A cut, with the network that was last made ready for it, and whether its statistics of norms were looked for."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.is_checked = False
        self._last: tuple[object, object, BoundNetwork] | None = None

    def __reduce__(self) -> tuple[type["PreparedCut"], tuple[Cut]]:
        """A copy of the network has tensors of its own, for which its cuts are made ready anew."""
        return PreparedCut, (self.cut,)

    def ready(
        self, runner: Runner, state: object, statistics: object, tensors: Callable[[], Mapping[str, Tensor]]
    ) -> BoundNetwork:
        """The network at the cut, made again of the cut's ``tensors`` if something that it was made of has changed.

        ``state`` changes with the network's tensors, and is None if that can't be told; ``statistics`` are replaced
        and not written to.
        """
        last = self._last
        if last is not None and not last[2].is_fresh():
            runner.recheck_separable()
            last = None
        if last is None or state is None or last[0] != state or last[1] is not statistics:
            last = self._last = state, statistics, runner.bound(self.cut, tensors())
        return last[2]


class PreparedCuts:
    """The last few cuts of a network, by whatever a caller gave to mean them."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._meant: dict[object, Cut] = {}
        self._prepared: dict[Cut, PreparedCut] = {}

    def at(self, cut: float | Mapping[str, int] | Cut) -> PreparedCut:
        """The cut that is meant, with its smaller tensors if it was among the last few; else without them."""
        checked = self._checked(cut)
        with _KEEPING:
            prepared = self._prepared.pop(checked, None) or PreparedCut(checked)
            self._prepared[checked] = prepared
            if len(self._prepared) > KEPT_CUTS:
                del self._prepared[next(iter(self._prepared))]
        return prepared

    def forget(self) -> None:
        """Forget the smaller tensors of all cuts."""
        with _KEEPING:
            self._prepared.clear()

    def _checked(self, cut: float | Mapping[str, int] | Cut) -> Cut:
        """The cut that is meant; the answers to earlier calls are remembered."""
        try:
            key = type(cut), tuple((k, type(v), v) for k, v in cut.items()) if isinstance(cut, Mapping) else cut
            return self._meant[key]
        except (KeyError, TypeError):  # a new one, or nothing that could be a cut
            made = make_cut(self._groups, cut)
        if len(self._meant) >= REMEMBERED_CUTS:
            self._meant.clear()
        self._meant[key] = made
        return made


class RunsAt(NamedTuple):
    """What a network runs at: a cut, and the slices that all calls share, if they do."""

    prepared: PreparedCut
    slices: dict[str, Tensor] | None = None


_running: ContextVar[Mapping[nn.Module, RunsAt]] = ContextVar("running", default={})  # noqa: B039  # never written to
"""The networks that are inside ``at`` in this thread or task, and what each runs at."""


def running_at(network: nn.Module) -> RunsAt | None:
    """What a network runs at in this thread or task; None outside ``at``."""
    return _running.get().get(network)


@contextmanager
def run_at(network: nn.Module, prepared: PreparedCut, slices: dict[str, Tensor] | None = None) -> Iterator[None]:
    """Inside the ``with`` statement a network runs at a cut in this thread or task."""
    token = _running.set({**_running.get(), network: RunsAt(prepared, slices)})
    try:
        yield
    finally:
        _running.reset(token)
