"""Networks of the zoo on vectors and tokens: perceptrons, embeddings, raw parameters, recurrent-free text models."""

import torch
import torch.nn.functional as F
from torch import nn
from zoo_case import Size, network, normal, tokens

VOCABULARY = 11
LENGTH = 5
CLASSES = 4


@network(normal(6, 6), first=Size(8, "fc1.weight"), second=Size(5, "fc2.weight"))
class MlpBatchNorm(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(6, first), nn.BatchNorm1d(first)
        self.fc2, self.bn2 = nn.Linear(first, second, bias=False), nn.BatchNorm1d(second, affine=False)
        self.fc3 = nn.Linear(second, CLASSES)

    def forward(self, x):
        x = F.dropout(F.relu(self.bn1(self.fc1(x))), 0.1, self.training)
        return F.log_softmax(self.fc3(torch.tanh(self.bn2(self.fc2(x)))), dim=-1)


@network(normal(6, 6), stream=Size(6, "stem.weight"), inner=Size(7, "up.weight"), last=Size(5, "fc.weight"))
class ResidualMlp(nn.Module):
    """The stream is as wide as the input, and yet the input is not cut."""

    def __init__(self, stream, inner, last):
        super().__init__()
        self.stem = nn.Linear(6, stream)
        self.up, self.down = nn.Linear(stream, inner), nn.Linear(inner, stream)
        self.fc, self.head = nn.Linear(stream, last), nn.Linear(last, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.down(F.silu(self.up(x)))
        return self.head(F.relu(self.fc(x)))


@network(normal(6, 6), first=Size(5, "matrices.0", axis=1), second=Size(7, "matrices.1", axis=1))
class RawParameters(nn.Module):
    """No layer at all: matrices and biases as bare parameters."""

    def __init__(self, first, second):
        super().__init__()
        shapes = ((6, first), (first, second))
        self.matrices = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.bias = nn.Parameter(torch.zeros(first))
        self.last = nn.Parameter(torch.zeros(CLASSES, second))

    def forward(self, x):
        x = torch.sigmoid(x @ self.matrices[0] + self.bias)
        x = torch.relu(torch.matmul(x, self.matrices[1]))
        return x @ self.last.t()


@network(
    normal(2, 5, 6),
    first=Size(5, "reads", axis=1, optional="einsum"),
    second=Size(7, "writes", axis=0, optional="einsum"),
)
class Einsum(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.reads = nn.Parameter(torch.zeros(6, first))
        self.writes = nn.Parameter(torch.zeros(second, first))
        self.head = nn.Linear(second, CLASSES)

    def forward(self, x):
        x = torch.relu(torch.einsum("btd,dk->btk", x, self.reads))
        return self.head(torch.relu(torch.einsum("btk,nk->btn", x, self.writes)).mean(dim=1))


@network(tokens(), stream=Size(6, "embedding.weight", axis=1), hidden=Size(8, "up.weight", rows=2))
class TiedEmbedding(nn.Module):
    """The embedding is the output layer too: its columns are the stream, its rows are the user's words."""

    def __init__(self, stream, hidden):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, stream)
        self.position = nn.Parameter(torch.zeros(1, LENGTH, stream))
        self.up, self.down = nn.Linear(stream, 2 * hidden), nn.Linear(hidden, stream)
        self.head = nn.Linear(stream, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words) + self.position
        return self.head(x + self.down(F.glu(self.up(x), dim=-1)))


@network(
    tokens(),
    stream=Size(6, "word.weight", axis=1, inexact=True),
    gate=Size(7, "gate.weight"),
)
class GatedText(nn.Module):
    """Word and place embeddings, a gate by two layers, LayerNorm, mean over the tokens."""

    def __init__(self, stream, gate):
        super().__init__()
        self.word, self.place = nn.Embedding(VOCABULARY, stream), nn.Embedding(LENGTH, stream)
        self.gate, self.value = nn.Linear(stream, gate), nn.Linear(stream, gate)
        self.down, self.norm = nn.Linear(gate, stream), nn.LayerNorm(stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, words):
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        x = x + self.down(F.silu(self.gate(x)) * self.value(x))
        return self.head(self.norm(x).mean(dim=1))


@network(
    tokens(length=6), stream=Size(5, "word.weight", axis=1), wide=Size(4, "wide.weight"), near=Size(6, "near.weight")
)
class TextCnn(nn.Module):
    """Embedding, transposed to channels first, two convolutions of different reach side by side."""

    def __init__(self, stream, wide, near):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, stream)
        self.wide, self.near = nn.Conv1d(stream, wide, 5), nn.Conv1d(stream, near, 2)
        self.head = nn.Linear(wide + near, CLASSES)

    def forward(self, words):
        x = self.word(words).transpose(1, 2)
        parts = [F.relu(conv(x)).amax(dim=-1) for conv in (self.wide, self.near)]
        return self.head(torch.cat(parts, dim=-1))


@network(normal(2, LENGTH, 6), stream=Size(6, "stem.weight", inexact=True), hidden=Size(8, "up.weight"))
class RmsNormMlp(nn.Module):
    def __init__(self, stream, hidden):
        super().__init__()
        self.stem, self.norm = nn.Linear(6, stream), nn.RMSNorm(stream, eps=1e-6)
        self.up, self.down = nn.Linear(stream, hidden, bias=False), nn.Linear(hidden, stream, bias=False)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


@network(normal(6, 6), hidden=Size(8, "fc1.weight", inexact=True), last=Size(5, "fc2.weight"))
class LayerNormMlp(nn.Module):
    def __init__(self, hidden, last):
        super().__init__()
        self.fc1, self.norm = nn.Linear(6, hidden), nn.LayerNorm(hidden)
        self.fc2, self.fc3 = nn.Linear(hidden, last), nn.Linear(last, CLASSES)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.norm(self.fc1(x))))))


@network(
    normal(2, LENGTH, 6),
    stream=Size(6, "stem.weight", inexact=True),
    over_tokens=Size(7, "mix1.weight"),
    over_channels=Size(8, "up.weight"),
)
class Mixer(nn.Module):
    """A perceptron over the tokens, then one over the channels; the tokens themselves are the user's."""

    def __init__(self, stream, over_tokens, over_channels):
        super().__init__()
        self.stem, self.norm1, self.norm2 = nn.Linear(6, stream), nn.LayerNorm(stream), nn.LayerNorm(stream)
        self.mix1, self.mix2 = nn.Linear(LENGTH, over_tokens), nn.Linear(over_tokens, LENGTH)
        self.up, self.down = nn.Linear(stream, over_channels), nn.Linear(over_channels, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.mix2(F.gelu(self.mix1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(dim=1))


@network(normal(2, 3, 6), first=Size(4, "fc1.weight"), second=Size(5, "fc2.weight"))
class StackedVectors(nn.Module):
    """Three vectors are taken apart by `unbind`, worked on and put together by `stack`."""

    def __init__(self, first, second):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, first), nn.Linear(first, second)
        self.head = nn.Linear(second, CLASSES)

    def forward(self, x):
        parts = [F.relu(self.fc1(part)) for part in x.unbind(dim=1)]
        return self.head(F.relu(self.fc2(torch.stack(parts, dim=1))).sum(dim=1))
