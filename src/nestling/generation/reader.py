"""A network at a cut that reads a text as it grows, each token once, by a cache of keys and values."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nestling.errors import ArgumentError, NestlingError, RangeError
from nestling.models import KeyValueCache
from nestling.prediction import CutLike
from nestling.reading import make_cut
from nestling.running import TOLERANCE, Nested, code_at, gap


@runtime_checkable
class ReadsTokens(Protocol):
    """A module that a text can be decoded with: ``forward(tokens, cache)`` gives logits (B, vocabulary, T)."""

    context: int
    vocabulary: int


class Reader:
    """The distributions of next tokens of a network at a cut; ``bound`` is the code that runs."""

    def __init__(self, network: nn.Module, cut: CutLike, name: str) -> None:
        module = network.module if isinstance(network, Nested) else network
        if not isinstance(module, ReadsTokens):
            needed = "one that predicts tokens, with a context, a vocabulary and forward(tokens, cache)"
            raise ArgumentError(name, f"a {type(module).__name__}", needed, "nl.models.GPT is one.")
        self.context, self.vocabulary = module.context, module.vocabulary
        self._device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
        self._bound = _bound(network, cut)
        self._start = 0
        self._cache = KeyValueCache(self.context)

    def begin(self) -> None:
        """Forget what was read, before another text."""
        self._start, self._cache = 0, KeyValueCache(self.context)

    def logits(self, tokens: Tensor, start: int, stop: int, number: int) -> Tensor:
        """Logits (number, V) of the tokens after each of the last ``number`` of tokens[start:stop].

        ``tokens`` (T,) is the text so far; what was read of it, and is the same still, is not read again. Tokens that
        were changed must be among the last ``number``, or come after what was read.
        """
        if start != self._start:
            self.begin()
            self._start = start
        self._cache.length = min(self._cache.length, stop - start - number)
        unread = tokens[None, start + self._cache.length : stop].to(self._device)
        logits: Tensor = self._bound(unread, self._cache)
        return logits[0, :, -number:].T.cpu()


@torch.no_grad()
def _bound(network: nn.Module, cut: CutLike) -> Callable[..., Any]:
    if not isinstance(network, Nested):
        if cut != 1:
            raise RangeError("cut", cut, "1.0 for a network that is not nested", "Nest it with nl.nest.")
        return network
    chosen = make_cut(network.groups, cut)
    bound = code_at(network, chosen)
    if network.plan is not None:
        _check_code(network, bound, cut)
    return bound


def _check_code(network: Nested, bound: Callable[..., Any], cut: CutLike) -> None:
    """Raise if the code of a network that runs as a graph fails or computes something else at a cut."""
    args, kwargs = network.example
    with network.at(cut):
        expected = network(*args, **kwargs)
    network.forget()  # the dense copies of the cut's tensors
    try:
        difference = gap(expected, bound(*args, **kwargs))
    except RuntimeError:
        difference = math.inf
    if difference > TOLERANCE:
        raise NestlingError(
            f"the network's code differs from its graph by {difference:.2g} of the largest output at the cut {cut}; "
            "nothing was generated. Let its forward take all sizes from its weights, as nl.models.GPT does."
        )
