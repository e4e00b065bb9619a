"""Scores cuts of a network over the same batches, each at its actual size, reusing results of similar cuts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nestling.prediction import Likelihood, pairs
from nestling.processes import ALONE, Processes
from nestling.reading import Cut
from nestling.running import Nested, Reuse, as_call, in_mode, norms_with_statistics, picked
from nestling.storage import tensors_digest
from nestling.torch_parts import pytree

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Quality(NamedTuple):
    """What a search maximises: the ``score``, and among equal scores the log-likelihood."""

    score: float
    log_likelihood: float


class Judge:
    """Scores cuts with the weights at their means; batch norms use the statistics of the current batch.

    On each batch the cuts run in the order of their widths, the widest first, so that cuts with equal widths up to some
    group follow each other. The layers before that group are computed once and kept for the next cut; no more than the
    activations of one run are kept. With several processes each scores its share of the cuts.
    """

    def __init__(
        self,
        nested: Nested,
        loader: Iterable[Any],
        likelihood: Likelihood,
        *,
        reuse: bool = True,
        processes: Processes = ALONE,
    ) -> None:
        self.nested, self.likelihood, self.reuse, self.processes = nested, likelihood, reuse, processes
        device = nested.device
        batches = [(x, target) for x, target in pairs(loader)]
        self._batches = pytree.tree_map_only(Tensor, lambda t: _laid_out(t.to(device)), batches)
        self._norms = norms_with_statistics(nested.module)
        self._owners: dict[str, list[int]] = {}
        for number, group in enumerate(nested.groups.free):
            for name in group.tensors:
                self._owners.setdefault(name, []).append(number)

    @property
    def fingerprint(self) -> str:
        """A checksum of the data that cuts are scored on."""
        return tensors_digest(leaf for leaf in pytree.tree_leaves(self._batches) if isinstance(leaf, Tensor))

    def __call__(self, cuts: Sequence[Cut]) -> list[Quality]:
        """The quality of each cut."""
        order = sorted(range(len(cuts)), key=lambda number: cuts[number].widths, reverse=True)
        rank, count = self.processes.rank, self.processes.count
        first, last = len(cuts) * rank // count, len(cuts) * (rank + 1) // count
        share = [cuts[number] for number in order[first:last]]
        sums = torch.zeros(len(share), 3, dtype=torch.float64)
        if share:
            with torch.no_grad(), in_mode(self.nested, training=False):
                made: dict[Any, Tensor] = {}
                tensors = [self._tensors(cut, made) for cut in share]
                for inputs, target in self._batches:
                    sums += self._over_batch(share, tensors, inputs, target)
        rows = torch.cat([gathered["sums"] for gathered in self.processes.gather_tensors({"sums": sums})])
        sums_of = dict(zip(order, rows.tolist(), strict=True))
        return [Quality(sums_of[n][0] / sums_of[n][2], sums_of[n][1] / sums_of[n][2]) for n in range(len(cuts))]

    def _over_batch(
        self,
        cuts: Sequence[Cut],
        tensors: Sequence[dict[str, Tensor]],
        inputs: Any,  # noqa: ANN401
        target: Tensor,
    ) -> Tensor:
        args, kwargs = as_call(inputs)
        memo = Reuse()
        memo.place(self._depths(self.nested.tensors()))
        sums = torch.zeros(len(cuts), 3, dtype=torch.float64)
        for number, (cut, cut_tensors) in enumerate(zip(cuts, tensors, strict=True)):
            memo.place(self._depths(cut_tensors))
            memo.keep = _agreeing(cut, cuts[number + 1]) if number + 1 < len(cuts) else 0
            with memo if self.reuse else nullcontext():
                output = picked(self.nested.call(self.nested.bound(cut, cut_tensors, self._norms), args, kwargs))
            self.likelihood.check(output, target)
            for column, values in enumerate((self.likelihood.score, self.likelihood.log_prob)):
                sums[number, column] = float(values(output.float(), target).double().sum())
            sums[number, 2] = len(target) * self.likelihood.elements(target)
        return sums

    def _depths(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, int]]:
        """Each tensor with the number of the last group that it belongs to."""
        return ((tensor, max(self._owners.get(name, (-1,)))) for name, tensor in tensors.items())

    def _tensors(self, cut: Cut, made: dict[Any, Tensor]) -> dict[str, Tensor]:
        """The smaller tensors of a cut; cuts with equal widths in a tensor's groups share the smaller tensor."""
        smaller = {}
        for name, tensor in self.nested.tensors_at(cut).items():
            widths = tuple(cut.widths[number] for number in self._owners.get(name, ()))
            smaller[name] = _once(made, (name, widths), partial(_laid_out, tensor))
        whole = self.nested.tensors()
        for path in self._norms:
            for kind in _BUFFERS:
                name = f"{path}.{kind}" if path else kind
                like = smaller.get(name, whole[name])
                smaller[name] = _once(made, ("scratch", name, like.shape), partial(torch.zeros_like, like))
        return smaller


def _laid_out(tensor: Tensor) -> Tensor:
    """The tensor in the layout that operations are fastest on: images and filters with their channels last."""
    return tensor.contiguous(memory_format=torch.channels_last if tensor.ndim == 4 else torch.contiguous_format)


def _once(made: dict[Any, Tensor], key: object, make: Callable[[], Tensor]) -> Tensor:
    if key not in made:
        made[key] = make()
    return made[key]


def _agreeing(first: Cut, second: Cut) -> int:
    """The number of groups, from the first on, in which two cuts are equal."""
    widths = zip(first.widths, second.widths, strict=True)
    return next((number for number, (one, other) in enumerate(widths) if one != other), len(first.widths))
