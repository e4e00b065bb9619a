"""Networks of the zoo with axes that must stay whole, each beside one that is free."""

import torch
import torch.nn.functional as F
from torch import nn
from zoo_case import Size, image, network, normal, tokens
from zoo_convolution import CLASSES, pooled


class Frozen(nn.Module):
    """Convolution, an operation that needs the whole axis, convolution (whose own output is free), head."""

    def __init__(self, channels, inner):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, channels, 3), nn.Conv2d(self.left_over(channels), inner, 3)
        self.head = nn.Linear(inner, CLASSES)

    def left_over(self, channels):
        return channels

    def forward(self, x):
        return self.head(pooled(F.relu(self.mix(self.operation(self.conv(x))))))


def frozen(why):
    """The sizes of a network of this file: the channels stay whole, the inner axis does not."""
    return network(image(), channels=Size(6, "conv.weight", frozen=why), inner=Size(5, "mix.weight"))


@frozen("a softmax over the channels")
class ChannelSoftmax(Frozen):
    def operation(self, x):
        return torch.softmax(x, dim=1)


@frozen("a running sum over the channels")
class CumulativeSum(Frozen):
    def operation(self, x):
        return torch.cumsum(x, dim=1)


@frozen("the first three channels are taken")
class FirstThree(Frozen):
    def left_over(self, channels):
        return 3

    def operation(self, x):
        return x[:, :3]


@frozen("every second channel is taken")
class EverySecond(Frozen):
    def left_over(self, channels):
        return channels // 2

    def operation(self, x):
        return x[:, ::2]


@frozen("channels are taken by a list of places")
class ByIndex(Frozen):
    def left_over(self, channels):
        return 3

    def operation(self, x):
        return x[:, [4, 0, 2]]


@frozen("channels are turned round")
class Flipped(Frozen):
    def operation(self, x):
        return torch.flip(x, dims=(1,))


@frozen("channels are moved along by one")
class Rolled(Frozen):
    def operation(self, x):
        return torch.roll(x, 1, dims=1)


@frozen("channels are sorted by value")
class Sorted(Frozen):
    def operation(self, x):
        return torch.sort(x, dim=1).values


@frozen("a mean over the channels divides by their number")
class MeanOverChannels(Frozen):
    def operation(self, x):
        return x - x.mean(dim=1, keepdim=True)


@frozen("a constant of full size is made in the code")
class MadeConstant(Frozen):
    def operation(self, x):
        return x * torch.linspace(1.0, 2.0, 6, dtype=x.dtype, device=x.device)[:, None, None]


@frozen("channels become rows of pixels")
class ChannelsAsPixels(Frozen):
    def left_over(self, channels):
        return 1

    def operation(self, x):
        return x.reshape(x.shape[0], 1, -1, x.shape[-1])


@network(
    normal(6, 6),
    left=Size(4, "left.weight", frozen="merged with another labelled axis"),
    right=Size(5, "right.weight", frozen="merged with another labelled axis"),
    hidden=Size(6, "fuse.weight"),
)
class MergedAxes(nn.Module):
    """An outer product of two vectors, flattened."""

    def __init__(self, left, right, hidden):
        super().__init__()
        self.left, self.right = nn.Linear(6, left), nn.Linear(6, right)
        self.fuse, self.head = nn.Linear(left * right, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, x):
        product = self.left(x)[:, :, None] * self.right(x)[:, None, :]
        return self.head(F.relu(self.fuse(product.flatten(1))))


@network(
    normal(6, 6), stream=Size(6, "fc1.weight", frozen="multiplied by the user's input"), hidden=Size(5, "fc2.weight")
)
class TimesInput(nn.Module):
    def __init__(self, stream, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, stream), nn.Linear(stream, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.head(F.relu(self.fc2(x + torch.sigmoid(self.fc1(x)) * x)))


@network(
    tokens(),
    stream=Size(4, "word.weight", axis=1, frozen="read by a recurrent layer that stays whole"),
    memory=Size(5, "recurrent.weight_ih_l0", rows=4, frozen="a recurrent layer with projections"),
    hidden=Size(6, "fc.weight"),
)
class ProjectedRecurrent(nn.Module):
    def __init__(self, stream, memory, hidden):
        super().__init__()
        self.word, self.recurrent = nn.Embedding(11, stream), nn.LSTM(stream, memory, proj_size=3, batch_first=True)
        self.fc, self.head = nn.Linear(3, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, words):
        return self.head(F.relu(self.fc(self.recurrent(self.word(words))[0][:, -1])))


@network(
    normal(6, 6),
    left=Size(4, "left.weight", optional="a bilinear layer"),
    right=Size(5, "right.weight", optional="a bilinear layer"),
    hidden=Size(6, "fuse.weight", optional="a bilinear layer"),
)
class BilinearLayer(nn.Module):
    def __init__(self, left, right, hidden):
        super().__init__()
        self.left, self.right = nn.Linear(6, left), nn.Linear(6, right)
        self.fuse, self.head = nn.Bilinear(left, right, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.head(F.relu(self.fuse(self.left(x), self.right(x))))


@network(
    image(),
    exports=False,
    channels=Size(6, "conv.weight", optional="cannot be exported"),
    inner=Size(5, "mix.weight", optional="cannot be exported"),
)
class DataDependent(nn.Module):
    """An `if` on a value: either recorded by the fallback, or refused with a message."""

    def __init__(self, channels, inner):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, inner, 3)
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv(x))
        if x.mean() > 1e6:
            x = x / x.mean()
        return self.head(pooled(F.relu(self.mix(x))))
