"""``nest``: finds the groups of a network and gives each an order over its widths."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from nestling.distributions import Sampling
from nestling.distributions.orders import OrderMaker
from nestling.distributions.weights import POSTERIORS
from nestling.errors import ArgumentError, DtypeError
from nestling.network.discovery import discover, run_example
from nestling.network.group_orders import order_maker, orders_of
from nestling.network.sorting import Loss, Sort, check_sort, chosen_sort, norms, sort_units, taylor
from nestling.reading import UNIT_KINDS, Bits, Choice, Groups, Kind, Slice
from nestling.reading.rules import Rule, default_rules
from nestling.running import (
    Call,
    Nested,
    Output,
    Read,
    as_call,
    bit_groups,
    of_posteriors,
    pair_of,
    pick_output,
    read_by,
    with_bit_groups,
)
from nestling.running.layers import check_sampling, default_posterior, make_variational, variational_layers
from nestling.tensor_arguments import real_tensor
from nestling.torch_parts import pytree


def nest(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    *,
    order: str | OrderMaker = "downhill",
    weights: str | None = "auto",
    sampling: Sampling | None = None,
    num_blocks: int = 32,
    num_always: int = 2,
    kinds: Collection[Kind] | None = None,
    where: Literal["inner", "all"] = "inner",
    layers: Literal["network", "stage"] = "network",
    rescale: bool = False,
    exclude: Collection[str] = (),
    only: Collection[str] | None = None,
    bits: Bits | Mapping[str, Any] | None = None,
    private: Sequence[float] = (),
    rules: Mapping[str, Rule] | None = None,
    sort: Sort = "auto",
    batches: Iterable[Any] | None = None,
    loss: Loss | None = None,
    batch: Read | None = None,
    output: Output | None = None,
) -> Nested:
    """Turn a network into one whose widths can be chosen later; the caller's module does not change.

    Every group is proved on the example: the network at a cut must compute what the whole one does with the cut units
    set to zero. ``nested.groups`` also has the groups that can't be cut, with the reason.

    By default all channels, neurons, heads and paths of the network may be cut. Whole layers may not, because a network
    whose layers can be dropped runs as a graph and can't be trained with relaxed masks. Bits may not either, because
    quantised weights change what the network computes.

    Args:
        module: Any network.
        example: A batch that it is called with: a tensor, a tuple of arguments, or a dictionary of
            keyword arguments.
        order: The distribution over widths: ``"downhill"`` (learned), ``"uniform"``, ``"geometric"`` or ``"full"``, or
            a function of (num_blocks, num_always).
        weights: ``"gaussian"`` and ``"ivon"`` replace linear and convolution layers by variational ones. Their noise is
            learned by gradients under a log-uniform prior, or by natural gradients under a normal prior. None keeps the
            layers plain, and ``"auto"`` is ``"ivon"`` for a network with convolutions and ``"gaussian"`` for any other.
        sampling: How weights are drawn, by default "local" for "gaussian" and "shared" for "ivon".
        num_blocks: Into how many blocks each group is divided; a group with fewer units has a block per unit.
        num_always: How many blocks of each group are never cut.
        kinds: What may be cut: some of ``"channel"``, ``"neuron"``, ``"head"``, ``"path"``, ``"layer"`` and ``"bit"``.
        where: ``"inner"`` cuts all axes except residual streams, ``"all"`` these too.
        layers: For the kind ``"layer"``: residual layers are dropped from the end of one list for the whole
            ``"network"``, or of one list per ``"stage"``.
        rescale: In eval mode, scale what reads a group by the keep probabilities of its blocks.
        exclude: Modules or tensors that are not cut.
        only: The groups to cut; None for all.
        bits: For the kind ``"bit"``: how weights are quantised.
        private: Cuts, as fractions, whose norms have separate weights: batch norms, and norms over units that are cut.
        rules: Rules for operations, by name, beside those of the library.
        sort: Put the units of each group in order of importance, so that cuts of a trained network keep those that
            matter; at full width nothing changes. ``"norm"`` is the sum of the absolute weights that produce a unit,
            ``"taylor"`` the first-order change of the ``loss`` on ``batches`` if a unit is removed. ``"auto"`` is
            ``"norm"`` if some batch norm has been trained, else ``"none"``.
        batches: For ``sort="taylor"``: pairs of inputs and targets.
        loss: For ``sort="taylor"``: a function of output and targets; cross-entropy by default.
        batch: A function that makes pairs of the batches, if they are none.
        output: Which tensor is meant where the network returns a dictionary, a tuple or an object: a key or an
            attribute, an index, or a function. By default it is ``logits``, if there are any. The nested network, and
            all that is extracted from it, returns that tensor.

    Returns:
        The nested network, a copy of the module, in the same mode.

    Raises:
        ArgumentError: If an option, the example or the network can't be used.
        TraceError: If the network's graph can't be recorded.

    Examples:
        >>> new = nl.nest(module, example, num_blocks=8)
        >>> with new.eval().at(0.5):
        ...     logits = new(images)
        >>> tuple(logits.shape), [group.name for group in new.groups.free]
        ((100, 10), ['layers.1', 'layers.3'])
    """
    _check_module(module)
    chosen_kinds = UNIT_KINDS if kinds is None else kinds
    chosen_bits = _chosen_bits(bits, chosen_kinds, rescale)
    choice = Choice(num_blocks, num_always, chosen_kinds, where, exclude, only, layers)
    args, kwargs = as_call(example)
    make_order = order_maker(order)
    weights = _chosen_posterior(weights, module)
    posterior = POSTERIORS.get(weights or "")
    if sampling is None:
        sampling = "local" if posterior is None else posterior.sampling
    check_sampling(sampling)
    check_sort(sort, batches, loss)
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            real_tensor("example", leaf)
    copy = deepcopy(module)
    output = pick_output(copy, run_example(copy, args, kwargs), output)
    groups, runner = discover(copy, args, kwargs, choice, default_rules() | dict(rules or {}))
    sort = chosen_sort(sort, copy)
    if sort != "none":
        _sort(copy, groups, (args, kwargs), batches, loss, batch)
    with_bits = [] if chosen_bits is None else bit_groups(copy, (args, kwargs), chosen_bits, exclude, only)
    if posterior is not None:
        variational = make_variational(copy, exclude, sampling, posterior)
        groups, with_bits = _with_posteriors(groups, copy), of_posteriors(with_bits, variational)
        runner.refresh()
    groups = with_bit_groups(groups, with_bits, runner.holders.tensors())
    orders = orders_of(groups, make_order, runner.holders.tensors().values())
    example = (args, kwargs)
    settings: dict[str, Any] = {"rescale": rescale, "bits": chosen_bits, "private": private, "output": output}
    nested = Nested(copy, groups, orders, runner, example=example, **settings)
    nested.training = module.training
    options: dict[str, Any] = {
        "weights": weights,
        "sampling": sampling,
        "num_blocks": num_blocks,
        "num_always": num_always,
    }
    options |= {"kinds": _kinds_of(groups) if kinds is None else list(kinds)}
    options |= {"where": where, "layers": layers, "rescale": rescale}
    options |= {"exclude": sorted(exclude), "only": None if only is None else sorted(only)}
    options |= {"bits": None if chosen_bits is None else asdict(chosen_bits), "private": list(private)}
    options |= {} if sort == "none" else {"sort": sort}
    options |= {} if output is None else {"output": output}
    nested.made_with = None if callable(order) or callable(output) or rules else {"order": order, **options}
    return nested


def _check_module(module: object) -> None:
    """Raise an error unless this is a module with initialised, finite weights; a buffer may be an infinite mask."""
    if not isinstance(module, nn.Module):
        given = f"a {type(module).__name__}"
        raise DtypeError("module", given, "an nn.Module", "Wrap a function in a module's forward.")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            given = "a tensor that is not initialised"
            raise ArgumentError(name, given, "initialised", "Run the network once before nesting it.")
        checked = isinstance(tensor, nn.Parameter) or bool(tensor.isnan().any())
        if checked and tensor.is_floating_point():
            real_tensor(name, tensor)


def _chosen_posterior(weights: str | None, module: nn.Module) -> str | None:
    """The name of the weight posterior, or None if the weights stay plain."""
    if weights == "auto":
        return default_posterior(module)
    if weights is not None and weights not in POSTERIORS:
        needed = f"auto, one of {', '.join(POSTERIORS)}, or None"
        raise ArgumentError("weights", repr(weights), needed, "None keeps plain weights.")
    return weights


def _chosen_bits(bits: Bits | Mapping[str, Any] | None, kinds: Collection[Kind], rescale: bool) -> Bits | None:
    """How weights are quantised, or None if they are not."""
    if "bit" not in kinds:
        if bits is not None:
            raise ArgumentError("bits", repr(bits), "left out", "Quantise with kinds=('bit',), or ('channel', 'bit').")
        return None
    if rescale:
        advice = "Leave it out: norms are recalibrated instead."
        raise ArgumentError("rescale", "True with quantised weights", "False with bits", advice)
    if bits is None or isinstance(bits, Bits):
        return bits or Bits()
    if not isinstance(bits, Mapping) or not set(bits) <= {option.name for option in fields(Bits)}:
        raise ArgumentError("bits", repr(bits), "options of nl.Bits", "Pass nl.Bits(num_groups=7).")
    return Bits(**bits)


def _kinds_of(groups: Groups) -> list[Kind]:
    """The kinds that are cut by default; heads and paths only if the network has any, as in earlier versions."""
    kinds = {"channel", "neuron", *(group.kind for group in groups.free)}
    return [kind for kind in UNIT_KINDS if kind in kinds]


def _sort(
    module: nn.Module,
    groups: Groups,
    call: Call,
    batches: Iterable[Any] | None,
    loss: Loss | None,
    batch: Read | None,
) -> None:
    """Sort units by the norms of their weights, or by the loss on batches; warn of groups that are not sorted."""
    device = next((tensor.device for tensor in module.parameters()), None)
    calls = None if batches is None else _calls(read_by(batches, batch), device)
    importance = norms(module, groups) if calls is None else taylor(module, groups, calls, loss)
    for name, reason in sort_units(module, groups, call, importance).items():
        warnings.warn(f"{name}: not sorted, {reason}", stacklevel=3)


def _calls(batches: Iterable[Any], device: torch.device | None) -> Iterator[tuple[Call, Any]]:
    """The arguments of the network and the targets of each batch, on a device."""
    for batch in batches:
        inputs, targets = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), pair_of(batch, object))
        yield as_call(inputs), targets


def _with_posteriors(groups: Groups, module: nn.Module) -> Groups:
    """Replace the slices of each variational layer's weight by slices of its posterior; the mean alone reads."""
    layers = variational_layers(module)

    def renamed(piece: Slice) -> tuple[Slice, ...]:
        path, _, key = piece.tensor.rpartition(".")
        if path not in layers or key != "weight":
            return (piece,)
        mean, *others = layers[path].tensors_along(path, piece.axis)
        return (
            replace(piece, tensor=mean[0]),
            *(replace(piece, tensor=name, axis=axis, reads=False) for name, axis in others),
        )

    return Groups([replace(group, slices=tuple(chain.from_iterable(map(renamed, group.slices)))) for group in groups])
