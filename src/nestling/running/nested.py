"""A network whose widths can be chosen while it runs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.orders import Order
from nestling.distributions.weights import WeightPosterior
from nestling.errors import ArgumentError, DtypeError, ShapeError
from nestling.kept_until_written import write_state
from nestling.reading import BakedSize, Bits, Cut, Groups, Plan, full_cut
from nestling.running.batches import Call, check_like_example
from nestling.running.bits import Levels, Quantised
from nestling.running.layers import drawing, mean_name, plain_name, variational_layers
from nestling.running.modes import in_mode
from nestling.running.norms import warn_of_statistics, were_trained
from nestling.running.norms_of_cuts import PrivateNorms
from nestling.running.outputs import Output
from nestling.running.prepared_cuts import PreparedCuts, run_at, running_at
from nestling.running.runner import BoundNetwork, OpenSizes, Runner
from nestling.running.shown import nested_card
from nestling.running.slicing import Scaler, Slicer
from nestling.torch_parts import Moving, pytree


class Nested(Moving):
    """A module with an order over the widths of each of its groups. ``nest`` makes it.

    In train mode each call draws a width for every group and computes only that part of the network. In eval mode a
    call runs at the current cut: the whole network, except inside ``at``. The current cut belongs to a thread or
    asyncio task, and in eval mode a call writes nothing on the network, so several threads may use it at once. Train
    mode is for one.

    Args:
        module: The network itself, whose layers may be variational.
        groups: What can be cut, and what can't, with the reason.
        orders: The distribution over the widths of each free group, by its name.
        runner: Runs the module, or its graph, with smaller tensors.
        example: The arguments of the call that ``nest`` was given.
        rescale: Whether readers of a group are scaled by keep probabilities in eval mode.
        bits: How weights are quantised.
        private: Cuts whose norms have separate weights.
        output: What was picked of the module's outputs, if they are no tensors.

    Attributes:
        statistics: The statistics of batch norms, by cut.
        likelihood: What an output means. ``train`` sets it; its parameters are learned and saved with the network.
        drawn: The cut of the last call in train mode.
        made_with: The options of ``nest``; None if they contain code.

    Examples:
        >>> with nested.at(0.5):
        ...     half = nested(images)
        >>> torch.equal(half, nested(images)), nested.cut.num_blocks
        (False, 16)
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Groups,
        orders: Mapping[str, Order],
        runner: Runner,
        *,
        example: Call,
        rescale: bool,
        bits: Bits | None = None,
        private: Sequence[float | Mapping[str, int]] = (),
        output: Output | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.groups = groups
        self.example = example
        self.rescale = rescale
        self.statistics: dict[Cut, dict[str, Tensor]] = {}
        self.made_with: dict[str, Any] | None = None
        self.likelihood: nn.Module | None = None
        self.output = output
        self._orders = nn.ModuleList(orders.values())
        self._names = tuple(orders)
        self._runner = runner
        self._slicer = Slicer(groups, {name: tensor.shape for name, tensor in self.tensors().items()})
        self._scaler = Scaler(groups, self.tensors())
        self.quantised = Quantised(groups, self.tensors(), bits or Bits())
        self.private = PrivateNorms(module, groups, private, self.sliced_at)
        self._layers = variational_layers(module)
        self.drawn: Cut | None = None
        self._has_warned = False
        self._prepared_cuts = PreparedCuts(groups)

    @property
    def orders(self) -> dict[str, Order]:
        """The order of each free group, by the group's name."""
        return dict(zip(self._names, self._orders, strict=True))  # type: ignore[arg-type]

    @property
    def cut(self) -> Cut:
        """The cut that eval mode runs at."""
        running = running_at(self)
        return running.prepared.cut if running is not None else full_cut(self.groups)

    @contextmanager
    def at(self, cut: float | Mapping[str, int] | Cut) -> Iterator["Nested"]:
        """Run at a cut inside the ``with`` statement.

        Without gradients the smaller tensors of the last few cuts are kept, as dense copies, until a tensor of the
        network is written to (writes through ``.data`` are not noticed) or its train or eval mode is set. In eval mode
        a cut without batch-norm statistics of its own is warned of, once per network: ``recalibrate`` it.

        Args:
            cut: A fraction of every group, widths by group name (other groups stay whole), or a ``Cut``.

        Returns:
            A context that gives the network itself.

        Raises:
            ArgumentError: If there is no such cut.
        """
        prepared = self._prepared_cuts.at(cut)
        if not (self.training or prepared.is_checked):
            prepared.is_checked = True
            self._warn_of_statistics(prepared.cut)
        with run_at(self, prepared):
            yield self

    def _warn_of_statistics(self, cut: Cut) -> None:
        """Warn once that a smaller cut runs with the statistics of the whole network's norms, if these were trained."""
        whole = full_cut(self.groups)
        if cut != whole and not self._has_warned and cut not in self.statistics and were_trained(self.module):
            self._has_warned = True
            warn_of_statistics(cut.num_blocks, whole.num_blocks)

    @contextmanager
    def shared_at(self, cut: float | Mapping[str, int] | Cut) -> Iterator["Nested"]:
        """Run at a cut inside the ``with`` statement; all calls share the cut's slices, and so one backward pass."""
        prepared = self._prepared_cuts.at(cut)
        with run_at(self, prepared, self.sliced_at(prepared.cut)):
            yield self

    @contextmanager
    def drawing(self) -> Iterator["Nested"]:
        """Inside the ``with`` statement draw weights and gates in eval mode too; the rest stays in eval mode.

        Examples:
            >>> with nested.drawing():
            ...     first, second = nested(images), nested(images)
            >>> torch.equal(first, second), torch.equal(nested(images), nested(images))
            (False, True)
        """
        with drawing(self):
            yield self

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return next((tensor.device for tensor in self.tensors().values()), torch.device("cpu"))

    @property
    def calls_layers(self) -> bool:
        """Whether every layer draws its weight as ``sampling`` says; a graph may ask some for one draw for all."""
        return self._runner.calls_layers

    @property
    def plan(self) -> Plan | None:
        """The plan of the graph that runs, or None if the module's code runs."""
        return self._runner.plan

    @property
    def attribute_sizes(self) -> Sequence[BakedSize]:
        """The attributes of the module's code that hold sizes which a cut changes."""
        return self._runner.sizes

    def sample_cut(self, generator: torch.Generator | None = None) -> Cut:
        """Draw a width for every group from its order.

        Args:
            generator: Draws the widths; None for torch's own.

        Returns:
            A cut, as a step of training uses it.

        Examples:
            >>> cut = nested.sample_cut(torch.Generator().manual_seed(0))
            >>> list(cut.as_dict()) == list(nested.orders)
            True
        """
        return Cut(tuple((name, int(order.sample((), generator))) for name, order in self.orders.items()))

    def log_prob(self, cut: Cut) -> Tensor:
        """Log-probability of drawing a cut, with gradients for the orders, as a score-function estimator needs it."""
        widths = cut.as_dict()
        terms = [
            order.log_prob(torch.tensor(widths[name], device=order.log_probs().device))
            for name, order in self.orders.items()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run at the current cut; in train mode and outside ``at``, at a newly drawn cut."""
        if not self.training:
            return self.call(self._ready_network(), args, kwargs)
        cut = self.cut
        if running_at(self) is None:
            cut = self.drawn = self.sample_cut()
        smaller = self.tensors_at(cut)
        result = self.run(cut, smaller, *args, **kwargs)
        self._slicer.give_back(self.tensors(), smaller, cut)
        return result

    def _ready_network(self) -> BoundNetwork:
        """The network at the current cut, kept for the next call unless its tensors need gradients."""
        running = running_at(self)
        prepared = running.prepared if running is not None else self._prepared_cuts.at(1.0)
        cut = prepared.cut
        if torch.is_grad_enabled():
            return self.bound(cut, self.tensors_at(cut))
        watched = [*self.tensors().values(), *self.quantised.parameters(), *self.private.parameters()]
        writes = write_state([*watched, *(self._orders.parameters() if self.rescale else ())])
        state = None if writes is None else (self.rescale, writes)
        return prepared.ready(self._runner, state, self.statistics.get(cut), lambda: self._dense_at(cut))

    def _dense_at(self, cut: Cut) -> dict[str, Tensor]:
        """The tensors that a cut changes, parameters as dense copies, which run faster."""
        tensors, smaller = self.tensors(), self.tensors_at(cut)
        return {name: t.contiguous() if isinstance(tensors[name], nn.Parameter) else t for name, t in smaller.items()}

    def run(self, cut: Cut, smaller: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run at a cut with these tensors in place of the network's tensors of the same names."""
        if self.training:
            return self.call(lambda *args, **kwargs: self._runner.run(cut, smaller, args, kwargs), args, kwargs)
        return self.call(self.bound(cut, smaller), args, kwargs)

    def call(self, network: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Call a network that is ready; if it fails, the error says how the inputs differ from the example."""
        try:
            return network(*args, **kwargs)
        except Exception as fault:
            check_like_example(self.example, (args, kwargs), fault)
            raise

    def bound(self, cut: Cut, smaller: Mapping[str, Tensor], norms: Collection[str] = ()) -> BoundNetwork:
        """A network to be called, at a cut with these tensors; ``norms`` are paths of batch norms in train mode."""
        return self._runner.bound(cut, smaller, norms)

    def run_masked(self, masks: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run with each block of a group scaled, where it is read, by its entry in the mask (K,).

        A mask of ones and zeros computes what the cut does, except in norms over units of the group, which see all
        units. A relaxed mask lets gradients reach the order that drew it. Inside ``at``, units beyond the cut are not
        computed, whatever their entries.
        """
        sizes = {group.name: (group.num_blocks,) for group in self.groups.free}
        if (shapes := {name: tuple(mask.shape) for name, mask in masks.items()}) != sizes:
            raise ShapeError("masks", f"masks of shapes {shapes}", f"one for each group: {sizes}", "See nested.groups.")
        for group in self.groups.free:
            if group.drops:
                given = f"a mask for the layers of {group.name}"
                raise ArgumentError("masks", given, "masks of units", "Draw whole widths instead.")
        tensors = self.tensors()
        quantised = self.quantised.masked(tensors, masks)
        scaled = quantised | self._scaler.scaled(tensors | quantised, masks)
        cut = self.cut
        smaller = scaled | self._slicer.cut(tensors | scaled, cut)
        result = self.run(cut, smaller, *args, **kwargs)
        if self.training:
            self._slicer.give_back(tensors, smaller, cut)
        return result

    def dropped(self, cut: Cut) -> frozenset[str]:
        """Names of the tensors of layers that a cut drops whole."""
        return self._runner.dropped(cut)

    def log_alphas(self, cut: Cut) -> dict[str, Tensor]:
        """log alpha of every weight that a cut keeps, by the name of its layer."""
        with self._posteriors(cut) as kept:
            return {path: posterior.bounded_log_alpha().expand_as(posterior.mean) for path, posterior in kept.items()}

    @property
    def num_uncertain(self) -> int:
        """How many weights have a posterior."""
        return sum(layer.posterior.mean.numel() for layer in self._layers.values())

    def weight_divergences(self, cut: Cut, divergence: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The divergence of every weight that a cut keeps, by the name of its layer."""
        with self._posteriors(cut) as kept:
            return {path: posterior.divergences(divergence) for path, posterior in kept.items()}

    def weight_total(self, cut: Cut, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """A divergence, a function of log alpha, summed over every weight that a cut keeps."""
        with self._posteriors(cut) as kept:
            totals = [posterior.total(divergence) for posterior in kept.values()]
        return torch.stack(totals).sum() if totals else torch.zeros(())

    @contextmanager
    def _posteriors(self, cut: Cut) -> Iterator[dict[str, WeightPosterior]]:
        """The posteriors of the layers that a cut keeps; inside the ``with`` statement they have the cut's size."""
        dropped, smaller = self.dropped(cut), self.sliced_at(cut)
        kept = {path: layer.posterior for path, layer in self._layers.items() if f"{path}.weight" not in dropped}
        if not self.training:  # other threads may be running the network
            twin = self._runner.twin(smaller)
            yield {path: twin.counterpart(posterior) for path, posterior in kept.items()}  # type: ignore[misc]
            return
        with self._runner.holders.replaced(smaller):
            yield kept

    def weight_shares(self, path: str, values: Mapping[str, Tensor]) -> Tensor:
        """For each weight of a variational layer, the product of the values of the blocks that it belongs to.

        If the values are keep probabilities, the product is the probability that the weight is kept.
        """
        name = self._runner.holders.canonical[mean_name(path)]
        return self._scaler.shares(name, self.tensors()[name], values)

    def extracted(self, cut: Cut, *, uncertainty: bool = False) -> nn.Module:
        """A copy of the module with the tensors that the cut keeps, in eval mode; ``extract`` verifies it."""
        with torch.no_grad(), in_mode(self, training=False):
            smaller = self.tensors_at(cut)
            make = self._runner.variational if uncertainty else self._runner.extracted
            return make(cut, smaller).eval()

    def open_sizes(self, network: nn.Module, cut: Cut) -> OpenSizes:
        """The sizes that the network extracted at a cut computes with, at other widths, which may be symbolic."""
        return self._runner.open_sizes(network, cut)

    def moving(self) -> AbstractContextManager[object]:
        """Wait until no call has put a cut's tensors into the module."""
        return self._runner.at_rest()

    def moved(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the example and the statistics of cuts when the network changes its device or dtype."""
        self.forget()
        self.example, self.statistics = pytree.tree_map_only(Tensor, fn, (self.example, self.statistics))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The state, taken while no call has put a cut's tensors into the module."""
        with self._runner.at_rest():
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Load a state while no call has put a cut's tensors into the module; ties between tensors are kept."""
        with self._runner.at_rest():
            result = super().load_state_dict(*args, **kwargs)
            self._runner.holders.tie()
        return result

    def train(self, mode: bool = True) -> "Nested":
        """Put the network in train or eval mode, and forget the smaller tensors of cuts."""
        self.forget()
        return super().train(mode)

    def forget(self) -> None:
        """Forget the smaller tensors of cuts: the network may have been written to through ``.data``."""
        self._prepared_cuts.forget()

    def _repr_html_(self) -> str:
        return nested_card(self.groups, self.orders, self.cut)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of the module, without duplicates."""
        return self._runner.tensors()

    def sliced_at(self, cut: Cut) -> dict[str, Tensor]:
        """The part of each tensor that a cut keeps, as it is stored; sizes follow from it."""
        running = running_at(self)
        if running is not None and running.slices is not None and running.prepared.cut == cut:
            return running.slices
        return self._slicer.cut(self.tensors(), cut)

    def levels_at(self, cut: Cut) -> dict[str, Levels]:
        """The levels of the quantised weights that a cut keeps, by name."""
        dropped = self.dropped(cut)
        return {name: levels for name, levels in self.quantised.levels(cut).items() if plain_name(name) not in dropped}

    def tensors_at(self, cut: Cut) -> dict[str, Tensor]:
        """The tensors that a cut changes: views of the network's tensors where possible, or quantised.

        In eval mode, tensors that read a group are scaled by its keep probabilities (``rescale``), and a cut that was
        recalibrated has its own statistics.
        """
        tensors = self.tensors()
        scaled: dict[str, Tensor] = {}
        if self.rescale and not self.training:
            keep_probs = {name: order.keep_probs().detach() for name, order in self.orders.items()}
            scaled = self._scaler.scaled(tensors, keep_probs)
        sliced = self._slicer.cut(tensors | scaled, cut) if scaled else self.sliced_at(cut)
        smaller = scaled | sliced | self.private.at(cut)
        smaller |= self.quantised.at(tensors | smaller, cut)
        if not self.training and cut in self.statistics:
            smaller |= {name: value.to(tensors[name]) for name, value in self.statistics[cut].items()}
        return smaller


def check_nested(nested: object) -> None:
    """Raise an error unless this is a nested network."""
    if not isinstance(nested, Nested):
        raise DtypeError("nested", f"a {type(nested).__name__}", "what nest gives", "Call nl.nest(module, example).")
