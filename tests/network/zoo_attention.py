"""Attention networks of the zoo, each written so that fewer heads keep the size of a head."""

import torch
import torch.nn.functional as F
from torch import nn
from zoo_case import Size, both, network, normal

LENGTH = 5
HEAD = 3
CLASSES = 4


def split_heads(x):
    """(batch, length, heads * HEAD) to (batch, heads, length, HEAD)."""
    return x.view(x.shape[0], x.shape[1], -1, HEAD).transpose(1, 2)


def join_heads(x):
    """(batch, heads, length, HEAD) to (batch, length, heads * HEAD)."""
    return x.transpose(1, 2).flatten(2)


def attend(query, key, value):
    """Softmax attention written out."""
    return torch.softmax(query @ key.transpose(-2, -1) * HEAD**-0.5, dim=-1) @ value


@network(
    normal(2, 4, 6),
    stream=Size(8, "stem.weight", inexact=True),
    heads=Size(4, "qkv.weight", rows=3 * HEAD, kind="head"),
    hidden=Size(7, "up.weight"),
)
class VisionTransformer(nn.Module):
    """A class token, positions, one pre-norm block whose q, k and v come from one layer as (3, heads, dim)."""

    def __init__(self, stream, heads, hidden):
        super().__init__()
        self.heads = heads
        self.stem = nn.Linear(6, stream)
        self.token = nn.Parameter(torch.zeros(1, 1, stream))
        self.position = nn.Parameter(torch.zeros(1, LENGTH, stream))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(stream), nn.LayerNorm(stream), nn.LayerNorm(stream)
        self.qkv, self.out = nn.Linear(stream, 3 * heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.up, self.down = nn.Linear(stream, hidden), nn.Linear(hidden, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        batch = x.shape[0]
        x = torch.cat([self.token.expand(batch, -1, -1), self.stem(x)], dim=1) + self.position
        qkv = self.qkv(self.norm1(x)).reshape(batch, LENGTH, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out(y.transpose(1, 2).reshape(batch, LENGTH, self.heads * HEAD))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x)[:, 0])


@network(
    normal(2, LENGTH, 6),
    stream=Size(6, "stem.weight"),
    heads=Size(4, "qkv.weight", rows=3 * HEAD, kind="head"),
)
class InterleavedAttention(nn.Module):
    """The fused layer holds (heads, 3, dim): a head's q, k and v lie side by side."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.qkv, self.out = nn.Linear(stream, heads * 3 * HEAD), nn.Linear(heads * HEAD, stream, bias=False)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        qkv = self.qkv(x).view(x.shape[0], LENGTH, -1, 3, HEAD)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(dim=3))
        return self.head(x + self.out(join_heads(attend(query, key, value))))


@network(
    normal(2, LENGTH, 6),
    stream=Size(6, "stem.weight"),
    heads=Size(4, "qkv.weight", rows=3 * HEAD, kind="head"),
)
class ChunkedAttention(nn.Module):
    """The fused layer is chunked first and seen as heads afterwards."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.qkv, self.out = nn.Linear(stream, 3 * heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        parts = [split_heads(part) for part in self.qkv(x).chunk(3, dim=-1)]
        return self.head(x + self.out(join_heads(F.scaled_dot_product_attention(*parts, is_causal=True))))


@network(
    normal(2, LENGTH, 6),
    stream=Size(8, "stem.weight", inexact=True),
    heads=Size(3, "query.weight", rows=HEAD, kind="head"),
)
class SeparateAttention(nn.Module):
    """Three layers for q, k and v, an RMSNorm before them, softmax attention written out."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem, self.norm = nn.Linear(6, stream), nn.RMSNorm(stream, eps=1e-6)
        self.query, self.key = nn.Linear(stream, heads * HEAD), nn.Linear(stream, heads * HEAD, bias=False)
        self.value, self.out = nn.Linear(stream, heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(x)
        y = attend(split_heads(self.query(y)), split_heads(self.key(y)), split_heads(self.value(y)))
        return self.head((x + self.out(join_heads(y))).mean(dim=1))


@network(
    both(normal(2, LENGTH, 6), normal(2, 3, 4)),
    ask=Size(5, "ask.weight"),
    tell=Size(6, "tell.weight"),
    heads=Size(4, "query.weight", rows=HEAD, kind="head"),
)
class CrossAttention(nn.Module):
    """Queries from one input, keys and values from another."""

    def __init__(self, ask, tell, heads):
        super().__init__()
        self.ask, self.tell = nn.Linear(6, ask), nn.Linear(4, tell)
        self.query, self.out = nn.Linear(ask, heads * HEAD), nn.Linear(heads * HEAD, CLASSES)
        self.key, self.value = nn.Linear(tell, heads * HEAD), nn.Linear(tell, heads * HEAD)

    def forward(self, asked, told):
        asked, told = F.relu(self.ask(asked)), F.relu(self.tell(told))
        parts = (split_heads(self.query(asked)), split_heads(self.key(told)), split_heads(self.value(told)))
        return self.out(join_heads(F.scaled_dot_product_attention(*parts)))


class GroupedQueries(nn.Module):
    """Each head of k and v serves two heads of q: the three are one unit."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.query, self.out = nn.Linear(stream, 2 * heads * HEAD), nn.Linear(2 * heads * HEAD, stream)
        self.key, self.value = nn.Linear(stream, heads * HEAD), nn.Linear(stream, heads * HEAD)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        query, key, value = (split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        return self.head(x + self.out(join_heads(self.attend(query, key, value))))


@network(normal(2, LENGTH, 6), stream=Size(6, "stem.weight"), heads=Size(3, "key.weight", rows=HEAD, kind="head"))
class GroupedQueryAttention(GroupedQueries):
    def attend(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@network(normal(2, LENGTH, 6), stream=Size(6, "stem.weight"), heads=Size(3, "key.weight", rows=HEAD, kind="head"))
class RepeatedKeyAttention(GroupedQueries):
    """As above, with the heads of k and v repeated by hand."""

    def attend(self, query, key, value):
        key, value = (
            x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(x.shape[0], -1, LENGTH, HEAD) for x in (key, value)
        )
        return attend(query, key, value)


@network(
    normal(2, LENGTH, 6),
    stream=Size(6, "stem.weight"),
    heads=Size(3, "query.weight", rows=HEAD, kind="head"),
)
class BiasedAttention(nn.Module):
    """Attention by einsum, with a learned bias per head and pair of places, as in T5 and Swin."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.query, self.key = nn.Linear(stream, heads * HEAD), nn.Linear(stream, heads * HEAD)
        self.value, self.out = nn.Linear(stream, heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.bias = nn.Parameter(torch.zeros(heads, LENGTH, LENGTH))
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        query, key, value = (split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", query, key) + self.bias, dim=-1)
        return self.head(x + self.out(join_heads(torch.einsum("bhqk,bhkd->bhqd", weights, value))))


class MultiheadByHand(nn.Module):
    """`nn.MultiheadAttention` with its names, for any number of heads beside any stream."""

    def __init__(self, stream, heads):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * heads * HEAD, stream))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * heads * HEAD))
        self.out_proj = nn.Linear(heads * HEAD, stream)

    def forward(self, query, key, value, need_weights=False):
        inputs = (query, key, value)
        layers = zip(inputs, self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        parts = [split_heads(F.linear(*layer)) for layer in layers]
        return self.out_proj(join_heads(attend(*parts))), None


class EncoderLayerByHand(nn.Module):
    """`nn.TransformerEncoderLayer` (norm last, relu) with its names, for any sizes."""

    def __init__(self, stream, heads, hidden):
        super().__init__()
        self.self_attn = MultiheadByHand(stream, heads)
        self.linear1, self.linear2 = nn.Linear(stream, hidden), nn.Linear(hidden, stream)
        self.norm1, self.norm2 = nn.LayerNorm(stream), nn.LayerNorm(stream)

    def forward(self, x):
        x = self.norm1(x + self.self_attn(x, x, x)[0])
        return self.norm2(x + self.linear2(F.relu(self.linear1(x))))


@network(
    normal(2, LENGTH, 7),
    stream=Size(4 * HEAD, "stem.weight"),
    heads=Size(4, "attention.in_proj_weight", rows=3 * HEAD, kind="head"),
)
class Multihead(nn.Module):
    """torch's own attention module, without its averaged weights."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(7, stream)
        whole = stream == heads * HEAD
        self.attention = (
            nn.MultiheadAttention(stream, heads, batch_first=True) if whole else MultiheadByHand(stream, heads)
        )
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


@network(
    normal(2, LENGTH, 7),
    stream=Size(4 * HEAD, "stem.weight", inexact=True),
    heads=Size(4, "layer.self_attn.in_proj_weight", rows=3 * HEAD, kind="head"),
    hidden=Size(8, "layer.linear1.weight"),
)
class EncoderLayer(nn.Module):
    def __init__(self, stream, heads, hidden):
        super().__init__()
        self.stem = nn.Linear(7, stream)
        if stream == heads * HEAD:
            self.layer = nn.TransformerEncoderLayer(stream, heads, hidden, batch_first=True)
        else:
            self.layer = EncoderLayerByHand(stream, heads, hidden)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        return self.head(self.layer(self.stem(x)).mean(dim=1))


@network(
    normal(2, LENGTH, 6),
    stream=Size(6, "stem.weight"),
    reach=Size(4, "query.weight", optional="the size of the only head: its scale may depend on it"),
    carried=Size(5, "value.weight", optional="the size of the only head"),
)
class NonLocal(nn.Module):
    """Attention without heads and without a scale: what q and k have in common is contracted away."""

    def __init__(self, stream, reach, carried):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.query, self.key = nn.Linear(stream, reach), nn.Linear(stream, reach)
        self.value, self.out = nn.Linear(stream, carried), nn.Linear(carried, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), dim=-1)
        return self.head(x + self.out(weights @ self.value(x)))


def turned(x):
    """The second half of the last axis, negated, before the first."""
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], dim=-1)


@network(
    normal(2, LENGTH, 7),
    stream=Size(6, "stem.weight", inexact=True),
    pairs=Size(3, "key.weight", rows=4, kind="head"),
    hidden=Size(5, "up.weight"),
)
class RotaryAttention(nn.Module):
    """A block of a language model: rotations by position, and keys for two heads of queries each."""

    def __init__(self, stream, pairs, hidden):
        super().__init__()
        self.stem, self.norm1, self.norm2 = nn.Linear(7, stream), nn.RMSNorm(stream), nn.RMSNorm(stream)
        self.query, self.key = nn.Linear(stream, 2 * pairs * 4), nn.Linear(stream, pairs * 4)
        self.value, self.out = nn.Linear(stream, pairs * 4), nn.Linear(2 * pairs * 4, stream)
        self.gate, self.up, self.down = nn.Linear(stream, hidden), nn.Linear(stream, hidden), nn.Linear(hidden, stream)
        self.head = nn.Linear(stream, CLASSES)
        self.register_buffer("frequency", torch.tensor([1.0, 0.3]))

    def forward(self, x):
        x = self.stem(x)
        angle = torch.arange(LENGTH)[:, None] * torch.cat([self.frequency, self.frequency])
        y = self.norm1(x)
        query, key, value = (
            layer(y).view(x.shape[0], LENGTH, -1, 4).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = (part * angle.cos() + turned(part) * angle.sin() for part in (query, key))
        x = x + self.out(join_heads(F.scaled_dot_product_attention(query, key, value, enable_gqa=True)))
        y = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


@network(normal(2, LENGTH, 6), stream=Size(5, "stem.weight"), heads=Size(3, "qkv.weight", rows=3 * HEAD, kind="head"))
class SplitBySize(nn.Module):
    """Queries, keys and values from one layer, split by a size that the code keeps, as in GPT-2."""

    def __init__(self, stream, heads):
        super().__init__()
        self.size = heads * HEAD
        self.stem, self.qkv = nn.Linear(6, stream), nn.Linear(stream, 3 * heads * HEAD)
        self.out, self.head = nn.Linear(heads * HEAD, stream), nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        query, key, value = (split_heads(part) for part in self.qkv(x).split(self.size, dim=2))
        return self.head(x + self.out(join_heads(F.scaled_dot_product_attention(query, key, value))))


@network(normal(2, LENGTH, 6), stream=Size(5, "stem.weight"), heads=Size(3, "query.weight", rows=HEAD, kind="head"))
class TableOfBiases(nn.Module):
    """What is added to the scores is read from a table by the distance of two places, as in Swin."""

    def __init__(self, stream, heads):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.query, self.key = nn.Linear(stream, heads * HEAD), nn.Linear(stream, heads * HEAD)
        self.value, self.out = nn.Linear(stream, heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.table = nn.Parameter(torch.zeros(2 * LENGTH - 1, heads))
        self.rows = nn.Parameter(torch.zeros(heads, LENGTH))
        places = torch.arange(LENGTH)
        self.register_buffer("distance", places[:, None] - places + LENGTH - 1)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        query, key, value = (split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        bias = self.table[self.distance].permute(2, 0, 1) + self.rows[:, self.distance % LENGTH]
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])
        return self.head(x + self.out(join_heads(y)))


@network(
    normal(2, LENGTH, 6),
    stream=Size(5, "stem.weight"),
    heads=Size(3, "query.weight", rows=HEAD, frozen="what is added to the scores has a fixed number of heads"),
)
class SlopePerHead(nn.Module):
    """A constant slope for each head is added to the scores, as in ALiBi."""

    def __init__(self, stream, heads):
        super().__init__()
        self.slopes = [2.0**-number for number in range(heads)]
        self.stem = nn.Linear(6, stream)
        self.query, self.key = nn.Linear(stream, heads * HEAD), nn.Linear(stream, heads * HEAD)
        self.value, self.out = nn.Linear(stream, heads * HEAD), nn.Linear(heads * HEAD, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        query, key, value = (split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        slopes = torch.tensor(self.slopes, dtype=x.dtype)[:, None, None] * torch.arange(LENGTH)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=slopes.expand(-1, LENGTH, -1))
        return self.head(x + self.out(join_heads(y)))
