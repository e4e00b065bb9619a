"""Networks of the zoo that move channels about: groups, shuffles, splits, gates, norms, computed weights."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from zoo_case import Size, image, network, normal
from zoo_convolution import CLASSES, pooled


def shuffled(x, groups):
    """Deal the channels of (batch, groups * n, ...) out in turn, as ShuffleNet does."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).reshape(batch, channels, height, width)


@network(image(), inner=Size(6, "conv.weight"))
class DepthwiseMultiplier(nn.Module):
    """Two outputs for each input channel of the depthwise convolution."""

    def __init__(self, inner):
        super().__init__()
        self.conv = nn.Conv2d(3, inner, 3, padding=1)
        self.depthwise = nn.Conv2d(inner, 2 * inner, 3, groups=inner)
        self.bn = nn.BatchNorm2d(2 * inner)
        self.out = nn.Conv2d(2 * inner, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.bn(self.depthwise(F.relu(self.conv(x))))))


@network(image(), stream=Size(6, "stem.weight"), paths=Size(4, "conv2.weight", rows=2, kind="path"))
class Resnext(nn.Module):
    """A path of the grouped convolution is one unit of two channels."""

    def __init__(self, stream, paths):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(stream, 2 * paths, 1, bias=False), nn.BatchNorm2d(2 * paths)
        self.conv2 = nn.Conv2d(2 * paths, 2 * paths, 3, padding=1, groups=paths, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * paths)
        self.conv3, self.bn3 = nn.Conv2d(2 * paths, stream, 1, bias=False), nn.BatchNorm2d(stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x))
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.head(pooled(F.relu(x + self.bn3(self.conv3(y)))))


@network(image(), paths=Size(3, "conv2.weight", rows=2, kind="path"))
class GroupedFlatten(nn.Module):
    """A path reads three channels, writes two, and owns the columns of all their pixels in the head."""

    def __init__(self, paths):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3 * paths, 3)
        self.conv2 = nn.Conv2d(3 * paths, 2 * paths, 3, groups=paths)
        self.head = nn.Linear(2 * paths * 16, CLASSES)

    def forward(self, x):
        return self.head(F.relu(self.conv2(torch.sigmoid(self.conv1(x)))).flatten(1))


@network(
    image(),
    paths=Size(3, "coarse.weight", rows=4, kind="path", optional="two group counts meet on one axis"),
)
class GroupsWithinGroups(nn.Module):
    """A path of the coarse convolution holds two paths of the fine one."""

    def __init__(self, paths):
        super().__init__()
        self.stem = nn.Conv2d(3, 4 * paths, 3)
        self.coarse = nn.Conv2d(4 * paths, 4 * paths, 3, groups=paths)
        self.fine = nn.Conv2d(4 * paths, 4 * paths, 3, groups=2 * paths)
        self.head = nn.Linear(4 * paths, CLASSES)

    def forward(self, x):
        return self.head(pooled(F.relu(self.fine(F.relu(self.coarse(F.relu(self.stem(x))))))))


@network(
    image(),
    paths=Size(
        2, "conv1.weight", rows=4, frozen="after the shuffle every path of the second reads every path of the first"
    ),
    inner=Size(5, "mix.weight"),
)
class GroupedShuffleGrouped(nn.Module):
    def __init__(self, paths, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, 4 * paths, 3)
        self.conv1 = nn.Conv2d(4 * paths, 4 * paths, 1, groups=paths)
        self.conv2 = nn.Conv2d(4 * paths, 4 * paths, 1, groups=paths)
        self.mix, self.head = nn.Conv2d(4 * paths, inner, 1), nn.Linear(inner, CLASSES)

    def forward(self, x):
        x = self.conv2(shuffled(F.relu(self.conv1(F.relu(self.stem(x)))), 2))
        return self.head(pooled(F.relu(self.mix(x))))


@network(image(), inner=Size(5, "conv1.weight", rows=2))
class ChannelShuffle(nn.Module):
    """Two stays two: a unit is the same place in both halves, and neighbours after the shuffle."""

    def __init__(self, inner):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(3, 2 * inner, 3), nn.BatchNorm2d(2 * inner)
        self.conv2 = nn.Conv2d(2 * inner, 3, 3)

    def forward(self, x):
        return self.conv2(shuffled(F.relu(self.bn(self.conv1(x))), 2))


@network(image(), inner=Size(4, "conv1.weight", rows=3, optional="an operation of its own in the graph"))
class NativeChannelShuffle(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3 * inner, 3), nn.Conv2d(3 * inner, 3, 3)
        self.shuffle = nn.ChannelShuffle(3)

    def forward(self, x):
        return self.conv2(self.shuffle(torch.sigmoid(self.conv1(x))))


@network(image(), half=Size(4, "stem.weight", rows=2), inner=Size(5, "conv1.weight"))
class ShuffleUnit(nn.Module):
    """ShuffleNetV2: halve, work on one half, put the halves side by side, shuffle."""

    def __init__(self, half, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * half, 3)
        self.conv1, self.bn1 = nn.Conv2d(half, inner, 1), nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)
        self.conv2 = nn.Conv2d(inner, half, 1)
        self.head = nn.Linear(2 * half, CLASSES)

    def forward(self, x):
        left, right = F.relu(self.stem(x)).chunk(2, dim=1)
        right = self.conv2(self.depthwise(F.relu(self.bn1(self.conv1(right)))))
        return self.head(pooled(shuffled(torch.cat([left, F.relu(right)], dim=1), 2)))


@network(image(side=4), channels=Size(3, "conv1.weight", rows=4), inner=Size(5, "conv2.weight"))
class PixelShuffle(nn.Module):
    """A channel after the shuffle is four before it, and again four after the way back."""

    def __init__(self, channels, inner):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4 * channels, 3, padding=1), nn.Conv2d(channels, inner, 3, padding=1)
        self.out = nn.Conv2d(4 * inner, 3, 1)

    def forward(self, x):
        x = torch.sigmoid(self.conv2(F.relu(F.pixel_shuffle(self.conv1(x), 2))))
        return self.out(F.pixel_unshuffle(x, 2))


@network(image(), inner=Size(5, "conv.weight", rows=2), deeper=Size(4, "conv2.weight", rows=2))
class ChunkGate(nn.Module):
    """Gates by `chunk` and by `F.glu`: a unit is a value and its gate."""

    def __init__(self, inner, deeper):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 2 * inner, 3), nn.BatchNorm2d(2 * inner)
        self.conv2 = nn.Conv2d(inner, 2 * deeper, 3)
        self.head = nn.Linear(deeper, CLASSES)

    def forward(self, x):
        value, gate = self.bn(self.conv(x)).chunk(2, dim=1)
        return self.head(pooled(F.glu(self.conv2(value * torch.sigmoid(gate)), dim=1)))


@network(
    image(), left=Size(4, "left.weight", axis=1), right=Size(6, "right.weight", axis=1), merged=Size(5, "left.weight")
)
class UnevenSplit(nn.Module):
    """The parts of a split are cut apart; their sizes stand in the Python code."""

    def __init__(self, left, right, merged):
        super().__init__()
        self.parts = [left, right]
        self.stem = nn.Conv2d(3, left + right, 3)
        self.left, self.right = nn.Conv2d(left, merged, 3), nn.Conv2d(right, merged, 3)
        self.head = nn.Linear(merged, CLASSES)

    def forward(self, x):
        left, right = F.relu(self.stem(x)).split(self.parts, dim=1)
        return self.head(pooled(F.relu(self.left(left) + self.right(right))))


@network(image(), norm_groups=Size(4, "conv.weight", rows=2), inner=Size(5, "out.weight", axis=1))
class WholeNormGroups(nn.Module):
    """Statistics run inside a pair of channels: the pair is the unit, and cutting pairs is exact."""

    def __init__(self, norm_groups, inner):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 2 * norm_groups, 3), nn.GroupNorm(norm_groups, 2 * norm_groups)
        self.conv2, self.norm2 = nn.Conv2d(2 * norm_groups, inner, 3), nn.GroupNorm(inner, inner)
        self.out = nn.Conv2d(inner, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.norm2(self.conv2(F.relu(self.norm(self.conv(x)))))))


@network(image(), inner=Size(6, "conv.weight", inexact=True))
class OneNormGroup(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, inner, 3), nn.GroupNorm(1, inner)
        self.out = nn.Conv2d(inner, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.norm(self.conv(x))))


@network(image(), inner=Size(6, "conv.weight", optional="instance norm has no rule of its own in the table"))
class InstanceNorm(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, inner, 3), nn.InstanceNorm2d(inner, affine=True)
        self.out = nn.Conv2d(inner, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.norm(self.conv(x))))


@network(image(), stream=Size(6, "stem.weight", inexact=True), hidden=Size(9, "up.weight"))
class ConvnextBlock(nn.Module):
    """Depthwise convolution, then channels last: norm, two linear layers, a scale per channel."""

    def __init__(self, stream, hidden):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 2, stride=2)
        self.depthwise = nn.Conv2d(stream, stream, 3, padding=1, groups=stream)
        self.norm = nn.LayerNorm(stream)
        self.up, self.down = nn.Linear(stream, hidden), nn.Linear(hidden, stream)
        self.layer_scale = nn.Parameter(torch.ones(stream))
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.down(F.gelu(self.up(y)))
        return self.head(pooled(x + y.permute(0, 3, 1, 2)))


class StandardisedConv2d(nn.Conv2d):
    """The filters are made to have mean zero and variance one over what they read."""

    def forward(self, x):
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (variance + 1e-5).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@network(
    image(),
    zeroing=False,
    first=Size(5, "conv1.weight", inexact=True, optional="the mean of a weight may freeze"),
    second=Size(6, "conv2.weight", optional="the mean of a weight may freeze the rest of it"),
)
class WeightStandardisation(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, first, 3), StandardisedConv2d(first, second, 3)
        self.head = nn.Linear(second, CLASSES)

    def forward(self, x):
        return self.head(pooled(F.relu(self.conv2(F.relu(self.conv1(x))))))


@network(
    image(),
    zeroing=False,
    first=Size(5, "conv1.weight", inexact=True, optional="the norm of a weight may freeze"),
    second=Size(
        6, "conv2.parametrizations.weight.original1", optional="the norm of a weight may freeze the rest of it"
    ),
)
class WeightNorm(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.conv1 = nn.Conv2d(3, first, 3)
        self.conv2 = parametrizations.weight_norm(nn.Conv2d(first, second, 3))
        self.head = nn.Linear(second, CLASSES)

    def forward(self, x):
        return self.head(pooled(F.relu(self.conv2(F.relu(self.conv1(x))))))


@network(image(), channels=Size(4, "conv.weight", rows=2, optional="a maximum inside the unit"))
class Maxout(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 2 * channels, 3), nn.Conv2d(channels, 3, 1)

    def forward(self, x):
        x = self.conv(x)
        return self.out(x.view(x.shape[0], -1, 2, *x.shape[2:]).amax(dim=2))


@network(image(), channels=Size(5, "conv.weight", optional="a sum over the axis"), inner=Size(4, "mix.weight"))
class SumOverChannels(nn.Module):
    """A sum over what was cut is the sum over what is left, as long as a zero stays a zero up to it."""

    def __init__(self, channels, inner):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3)
        self.mix, self.out = nn.Conv2d(1, inner, 3), nn.Conv2d(inner, 2, 1)

    def forward(self, x):
        return self.out(F.relu(self.mix(F.relu(self.conv(x)).sum(dim=1, keepdim=True))))


@network(image(), channels=Size(5, "conv.weight", optional="a repeated axis"))
class RepeatedChannels(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, channels, 3), nn.Conv2d(2 * channels, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.conv(x)).repeat(1, 2, 1, 1))


@network(image(), half=Size(3, "conv.weight", rows=2))
class HalvesBySlices(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 2 * half, 3), nn.Conv2d(half, 3, 1)

    def forward(self, x):
        x = self.conv(x)
        half = x.shape[1] // 2
        return self.out(x[:, :half] * torch.sigmoid(x[:, half:]))


@network(
    image(side=4),
    channels=Size(5, "conv.weight"),
    inner=Size(4, "up.weight", optional="a depthwise transposed convolution"),
)
class DepthwiseTransposed(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, inner, 1)
        self.up = nn.ConvTranspose2d(inner, inner, 2, stride=2, groups=inner)
        self.out = nn.Conv2d(inner, 3, 1)

    def forward(self, x):
        return self.out(F.relu(self.up(F.relu(self.mix(F.relu(self.conv(x)))))))


@network(image(), left=Size(4, "left.weight", axis=1), right=Size(3, "right.weight", axis=1))
class PartsBySlices(nn.Module):
    """Two parts of an axis, of sizes that the code keeps, go different ways, as in a dual path network."""

    def __init__(self, left, right):
        super().__init__()
        self.place = left
        self.conv, self.norm = nn.Conv2d(3, left + right, 3), nn.BatchNorm2d(left + right)
        self.left, self.right = nn.Conv2d(left, 3, 1), nn.Conv2d(right, 3, 1)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.left(x[:, : self.place]) * self.right(x[:, self.place :])


@network(image(), narrow=Size(4, "stem.weight"), inner=Size(5, "conv1.weight"))
class PaddedShortcut(nn.Module):
    """A residual stream that gains channels of a constant, as in a pyramid network."""

    def __init__(self, narrow, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, narrow, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(narrow, inner, 3, padding=1), nn.Conv2d(inner, narrow + 2, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(narrow + 2), nn.Linear(narrow + 2, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.pad(x, (0, 0, 0, 0, 0, 2), value=0.5) + self.conv2(F.relu(self.conv1(x)))
        return self.head(pooled(F.relu(self.norm(x))))


@network(image(), zeroing=False, channels=Size(6, "conv.weight", inexact=True), inner=Size(5, "mix.weight"))
class NormWrittenOut(nn.Module):
    """A LayerNorm over the channels, written out for channels that come first, as in ConvNeXt."""

    def __init__(self, channels, inner):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, inner, 3)
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, x):
        x = self.conv(x)
        centred = x - x.mean(1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(1, keepdim=True) + 1e-6)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return self.head(pooled(F.relu(self.mix(F.relu(x)))))


class RootMeanSquare(nn.Module):
    """RMSNorm written out, as language models do."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@network(normal(2, 5, 6), zeroing=False, stream=Size(6, "stem.weight", inexact=True), hidden=Size(5, "up.weight"))
class SquaresWrittenOut(nn.Module):
    def __init__(self, stream, hidden):
        super().__init__()
        self.stem, self.norm = nn.Linear(6, stream), RootMeanSquare(stream)
        self.up, self.down = nn.Linear(stream, hidden), nn.Linear(hidden, stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.down(F.silu(self.up(self.norm(x)))))


@network(image(), channels=Size(5, "conv.weight"), inner=Size(4, "squeeze.weight"), places=Size(3, "near.weight"))
class ExpandedGates(nn.Module):
    """A gate for each channel and one for each place, both grown to the size of what they multiply."""

    def __init__(self, channels, inner, places):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3)
        self.squeeze, self.excite = nn.Linear(channels, inner), nn.Linear(inner, channels)
        self.near, self.place = nn.Conv2d(channels, places, 1), nn.Conv2d(places, 1, 1)
        self.weight = nn.Parameter(torch.zeros(CLASSES, channels))

    def forward(self, x):
        x = F.relu(self.conv(x))
        gate = self.excite(F.relu(self.squeeze(pooled(x))))[:, :, None, None].expand_as(x)
        place = self.place(F.relu(self.near(x))).expand_as(x)
        return pooled(x * torch.sigmoid(gate + place)) @ self.weight.T
