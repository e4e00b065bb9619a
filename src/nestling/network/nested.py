"""A network whose widths can be chosen while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.orders import Order
from nestling.network.cut import Cut, full_cut, make_cut
from nestling.network.group import Groups
from nestling.network.runner import Runner
from nestling.network.slicing import Slicer


class Nested(nn.Module):
    """A module with an order over the widths of each of its groups, which ``nest`` makes.

    In train mode each call draws a width for every group and computes only that part of the network; in eval mode it
    runs at the current cut, which is the whole network unless ``at`` says otherwise.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Groups,
        orders: Mapping[str, Order],
        runner: Runner,
        *,
        example: tuple[tuple[Any, ...], dict[str, Any]],
        rescale: bool,
    ) -> None:
        super().__init__()
        self.module = module
        self.groups = groups
        self.example = example
        self.rescale = rescale
        self._orders = nn.ModuleList(orders.values())
        self._names = tuple(orders)
        self._runner = runner
        self._slicer = Slicer(groups, {name: tensor.shape for name, tensor in runner.holders.tensors().items()})
        self._cut: Cut | None = None

    @property
    def orders(self) -> dict[str, Order]:
        """The order of each free group, by the group's name."""
        return dict(zip(self._names, self._orders, strict=True))  # type: ignore[arg-type]

    @property
    def cut(self) -> Cut:
        """The cut that eval mode runs at."""
        return self._cut if self._cut is not None else full_cut(self.groups)

    @contextmanager
    def at(self, cut: float | Mapping[str, int] | Cut) -> Iterator["Nested"]:
        """Run at a cut inside the block: a fraction of every group, widths by group name, or a Cut."""
        before, self._cut = self._cut, make_cut(self.groups, cut)
        try:
            yield self
        finally:
            self._cut = before

    def sample_cut(self, generator: torch.Generator | None = None) -> Cut:
        """Draw a width for every group from its order."""
        return Cut(tuple((name, int(order.sample((), generator))) for name, order in self.orders.items()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run at the current cut; in train mode, unless inside ``at``, at a cut that is drawn anew."""
        cut = self.sample_cut() if self.training and self._cut is None else self.cut
        return self._runner.run(cut, self.tensors_at(cut), args, kwargs)

    def extracted(self, cut: Cut) -> nn.Module:
        """A copy of the module that owns what the cut keeps, in eval mode; ``extract`` verifies it."""
        with torch.no_grad():
            return self._runner.extracted(cut, self.tensors_at(cut)).eval()

    def tensors_at(self, cut: Cut) -> dict[str, Tensor]:
        """The tensors that a cut makes smaller, as views of the network's own wherever possible."""
        return self._slicer.cut(self._runner.holders.tensors(), cut)
