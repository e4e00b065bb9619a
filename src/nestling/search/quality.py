"""Scores cuts of a network over the same batches, each at its own size, reusing what a cut close to them computed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from nestling.network import Cut, Nested
from nestling.network.modes import in_mode
from nestling.network.nest import as_call
from nestling.network.reuse import Reuse
from nestling.prediction.evaluate import pairs
from nestling.prediction.likelihoods import Likelihood
from nestling.processes import ALONE, Processes
from nestling.training.files import bytes_of

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Quality(NamedTuple):
    """What a search maximises: the ``score``, and among equal ones the log-likelihood."""

    score: float
    log_likelihood: float


class Judge:
    """Scores cuts with the weights at their means; batch norms use the statistics of the batch they are in.

    A batch at a time, so that no more than the activations of one are held. Cuts that differ from their parent in late
    groups run first: what comes before is computed once, kept, and read by those that differ earlier. Of several
    processes each scores its share of the cuts.
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
        device = next((t.device for t in nested.tensors().values()), torch.device("cpu"))
        batches = [(x, target) for x, target in pairs(loader)]
        self._batches = pytree.tree_map_only(Tensor, lambda t: t.to(device), batches)
        self._norms = {
            path: part
            for path, part in nested.module.named_modules()
            if isinstance(part, _BatchNorm) and part.running_mean is not None
        }
        self._owners: dict[str, list[str]] = {}
        for group in nested.groups.free:
            for piece in group.slices:
                self._owners.setdefault(piece.tensor, []).append(group.name)

    @property
    def fingerprint(self) -> str:
        """A checksum of the data that cuts are scored on."""
        total = hashlib.sha256()
        for leaf in pytree.tree_leaves(self._batches):
            if isinstance(leaf, Tensor):
                total.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
                total.update(bytes_of(leaf))
        return total.hexdigest()

    def __call__(self, cuts: Sequence[Cut], parent: Cut | None = None) -> list[Quality]:
        """The quality of each cut; ``parent`` is one that differs little from all of them."""
        share = list(self.processes.share(cuts))
        sums = torch.zeros(len(share), 3, dtype=torch.float64)
        known: dict[Any, Tensor] = {}
        if share:
            with torch.no_grad(), in_mode(self.nested, training=False):
                for norm in self._norms.values():
                    norm.training = True
                tensors = {cut: self._tensors(cut, known) for cut in (*share, *([parent] if parent else []))}
                for inputs, target in self._batches:
                    sums += self._over_batch(share, parent if self.reuse else None, tensors, inputs, target)
        found = [own["sums"] for own in self.processes.gather_tensors({"sums": sums})]
        rows = [found[number % len(found)][number // len(found)].tolist() for number in range(len(cuts))]
        return [Quality(score / count, log_prob / count) for score, log_prob, count in rows]

    def _over_batch(
        self,
        cuts: Sequence[Cut],
        parent: Cut | None,
        tensors: Mapping[Cut, dict[str, Tensor]],
        inputs: Any,  # noqa: ANN401
        target: Tensor,
    ) -> Tensor:
        args, kwargs = as_call(inputs)
        memo = Reuse()
        sums = torch.zeros(len(cuts), 3, dtype=torch.float64)
        for number in self._from_the_end(cuts, parent):
            cut = cuts[number]
            if parent is not None:
                memo.forget(_others(tensors[cut], tensors[parent]))
            with nullcontext() if parent is None else memo:
                output = self.nested.run(cut, tensors[cut], *args, **kwargs)
            self.likelihood.check(output, target)
            for column, values in enumerate((self.likelihood.score, self.likelihood.log_prob)):
                sums[number, column] = float(values(output.float(), target).double().sum())
            sums[number, 2] = len(target) * self.likelihood.elements(target)
        return sums

    def _from_the_end(self, cuts: Sequence[Cut], parent: Cut | None) -> list[int]:
        """The numbers of the cuts, those first that agree with the parent up to a late group."""
        if parent is None:
            return list(range(len(cuts)))

        def first_change(number: int) -> int:
            pairs_of = zip(cuts[number].widths, parent.widths, strict=True)
            return next((i for i, (own, theirs) in enumerate(pairs_of) if own != theirs), len(parent.widths))

        return sorted(range(len(cuts)), key=first_change, reverse=True)

    def _tensors(self, cut: Cut, known: dict[Any, Tensor]) -> dict[str, Tensor]:
        """The smaller tensors of a cut, the same ones for cuts that agree on the groups that a tensor belongs to."""
        widths = cut.as_dict()
        found = {}
        for name, tensor in self.nested.tensors_at(cut).items():
            key = name, tuple(widths[group] for group in self._owners.get(name, ()))
            found[name] = known.setdefault(key, tensor.contiguous())
        own = self.nested.tensors()
        for path in self._norms:
            for kind in _BUFFERS:
                name = f"{path}.{kind}" if path else kind
                like = found.get(name, own[name])
                found[name] = known.setdefault(("scratch", name, like.shape), torch.zeros_like(like))
        return found


def _others(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of one cut that another does not have."""
    return [tensor for name, tensor in own.items() if theirs.get(name) is not tensor]
