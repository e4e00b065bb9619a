"""A small GPT: predicts the next token of a text at each position, with a cache of keys and values for decoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.errors import ArgumentError, ShapeError
from nestling.models.multiplier import multiplied

_INITIAL_STD = 0.02
"""Standard deviation of the initial weights, as in GPT-2 (Radford et al. 2019)."""


class GPT(nn.Module):
    """A transformer that predicts the next token: layers of causal attention and of feed-forward units, norms first.

    Its code takes the number of heads and of units from its weights, so that it runs as a module at any cut, on any
    number of texts of any length up to ``context``. With tokens that are bytes it needs no tokenizer.

    Args:
        vocabulary: How many tokens there are.
        context: The most tokens that it reads at once.
        layers: The number of attention layers, each of which is followed by a feed-forward layer.
        stream: The size of the residual stream, which no cut changes.
        heads: The number of attention heads per layer; ``stream`` must be a multiple of it.
        hidden: The number of feed-forward units per layer; None for four times the stream.
        width: Multiplies the heads and the feed-forward units, and not the size of a head.

    Raises:
        ArgumentError: If the stream is no multiple of the heads.

    Examples:
        >>> net = nl.models.GPT(context=16, layers=2, stream=32, heads=4)
        >>> tuple(net(torch.zeros(3, 10, dtype=torch.int64)).shape)  # logits of 256 bytes after each of 10 positions
        (3, 256, 10)
    """

    def __init__(
        self,
        *,
        vocabulary: int = 256,
        context: int = 128,
        layers: int = 8,
        stream: int = 128,
        heads: int = 4,
        hidden: int | None = None,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        if stream % heads:
            raise ArgumentError("stream", stream, f"a multiple of the number of heads, {heads}", "Change one of them.")
        head_size, units = stream // heads, multiplied(4 * stream if hidden is None else hidden, width)
        self.context, self.vocabulary = context, vocabulary
        self.tokens, self.positions = nn.Embedding(vocabulary, stream), nn.Embedding(context, stream)
        self.layers = nn.ModuleList(
            _Layer(stream, multiplied(heads, width), head_size, units, number) for number in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(stream), nn.Linear(stream, vocabulary, bias=False)
        self._initialise(layers)

    def forward(self, tokens: Tensor, cache: "KeyValueCache | None" = None) -> Tensor:
        """Logits (B, vocabulary, T) of the token after each position.

        Args:
            tokens: Whole numbers (B, T).
            cache: The keys and values of the tokens before these; those of ``tokens`` are added to it.

        Returns:
            The logits, classes on axis 1.
        """
        start = 0 if cache is None else cache.length
        stop = start + tokens.shape[1]
        if stop > self.context:
            raise ShapeError("tokens", f"{stop} of them", f"at most {self.context}, the context", "Cut the text.")
        x = self.tokens(tokens) + self.positions(torch.arange(start, stop, device=tokens.device))
        for layer in self.layers:
            x = layer(x, cache)
        if cache is not None:
            cache.length = stop
        logits: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return logits

    def _initialise(self, layers: int) -> None:
        """Small normal weights; those that add to the stream are smaller, since there are two per layer."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                adds = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=_INITIAL_STD / math.sqrt(2 * layers) if adds else _INITIAL_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class KeyValueCache:
    """The keys and values of the tokens that a network has read, so that it reads each token once.

    Their sizes are those of the heads that a cut keeps. Take a new cache for each cut and each text.

    Args:
        capacity: The most tokens that it holds, the network's context.

    Attributes:
        length: How many tokens were read. Lower it to forget the last ones.

    Examples:
        >>> net, words = nl.models.GPT(context=16, layers=2, stream=32, heads=4), torch.arange(10)[None]
        >>> cache = nl.models.KeyValueCache(16)
        >>> with torch.no_grad():
        ...     first, second = net(words[:, :6], cache), net(words[:, 6:], cache)
        ...     whole = net(words)
        >>> cache.length, torch.allclose(torch.cat((first, second), 2), whole, atol=1e-5)
        (10, True)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def extended(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (B, heads, T, head size) of new tokens in a layer; returns those of all tokens."""
        batch, heads, length, size = key.shape
        if layer not in self._kept:
            shape = (batch, heads, self.capacity, size)
            self._kept[layer] = key.new_empty(shape), value.new_empty(shape)
        keys, values = self._kept[layer]
        if keys.shape[:2] != (batch, heads):
            needed = f"{keys.shape[0]} texts and {keys.shape[1]} heads, as in the cache"
            raise ShapeError("cache", f"{batch} texts and {heads} heads", needed, "Take a new cache for another cut.")
        stop = self.length + length
        keys[:, :, self.length : stop], values[:, :, self.length : stop] = key, value
        return keys[:, :, :stop], values[:, :, :stop]


class _Layer(nn.Module):
    def __init__(self, stream: int, heads: int, head_size: int, hidden: int, number: int) -> None:
        super().__init__()
        self.attention = _Attention(stream, heads, head_size, number)
        self.feed_forward = _FeedForward(stream, hidden)

    def forward(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        x = x + self.attention(x, cache)
        result: Tensor = x + self.feed_forward(x)
        return result


class _Attention(nn.Module):
    """Causal attention. The rows of ``qkv`` are (heads, 3, head size), so that the first heads are its first rows."""

    def __init__(self, stream: int, heads: int, head_size: int, number: int) -> None:
        super().__init__()
        self.head_size, self.number = head_size, number
        self.norm = nn.LayerNorm(stream)
        self.qkv, self.out = nn.Linear(stream, 3 * heads * head_size), nn.Linear(heads * head_size, stream)

    def forward(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(2, (-1, 3, self.head_size))
        query, key, value = qkv.transpose(1, 2).unbind(3)
        if cache is None or cache.length == 0:
            if cache is not None:
                cache.extended(self.number, key, value)
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            key, value = cache.extended(self.number, key, value)
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=_after(cache.length, x))
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result


def _after(past: int, x: Tensor) -> Tensor | None:
    """Which of the tokens so far each new one attends to: those before it and itself. One new token attends to all."""
    new = x.shape[1]
    if new == 1:
        return None
    return torch.ones(new, past + new, dtype=torch.bool, device=x.device).tril(past)


class _FeedForward(nn.Module):
    def __init__(self, stream: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(stream)
        self.up, self.down = nn.Linear(stream, hidden), nn.Linear(hidden, stream)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return result
