"""Convolutional networks of the zoo: chains, residual streams, skips, tied parts, one to three dimensions."""

import torch
import torch.nn.functional as F
from torch import nn
from zoo_case import Size, both, image, network, normal

CLASSES = 4


def pooled(x):
    """Average over the spatial axes and drop them."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@network(image(), first=Size(5, "conv1.weight"), second=Size(7, "conv2.weight"))
class PlainCnn(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.conv1 = nn.Conv2d(3, first, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, dilation=2, bias=False)
        self.bn2 = nn.BatchNorm2d(second)
        self.head = nn.Linear(second, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2, stride=1)
        return self.head(pooled(torch.sigmoid(self.bn2(self.conv2(x)))))


@network(image(), channels=Size(6, "conv.weight"), hidden=Size(9, "fc1.weight"))
class FlattenLinear(nn.Module):
    """A channel owns the sixteen columns of `fc1` that read its pixels."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(channels * 16, hidden)
        self.fc2 = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        x = torch.flatten(self.pool(F.gelu(self.conv(x))), 1)
        return self.fc2(F.relu(self.fc1(x)))


@network(image(), channels=Size(6, "conv.weight"))
class ViewLinear(nn.Module):
    """The flatten is a `view` with the batch size written out."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, stride=2)
        self.fc = nn.Linear(channels * 9, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.fc(x.view(x.shape[0], -1))


@network(image(), stream=Size(6, "stem.weight"), inner=Size(8, "conv1.weight"))
class Residual(nn.Module):
    def __init__(self, stream, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.bn0 = nn.BatchNorm2d(stream)
        self.conv1 = nn.Conv2d(stream, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, stream, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn0(self.stem(x)))
        x = F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.head(pooled(x))


@network(
    image(),
    stem=Size(6, "stem.weight"),
    narrow=Size(4, "reduce.weight"),
    middle=Size(5, "conv.weight"),
    wide=Size(8, "expand.weight"),
    again=Size(4, "reduce2.weight"),
)
class Bottleneck(nn.Module):
    """Two bottlenecks: the first with a strided projection on its shortcut, the second with the identity."""

    def __init__(self, stem, narrow, middle, wide, again):
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.reduce, self.bn1 = nn.Conv2d(stem, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
        self.conv, self.bn2 = nn.Conv2d(narrow, middle, 3, 2, 1, bias=False), nn.BatchNorm2d(middle)
        self.expand, self.bn3 = nn.Conv2d(middle, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential(nn.Conv2d(stem, wide, 1, 2, bias=False), nn.BatchNorm2d(wide))
        self.reduce2, self.bn4 = nn.Conv2d(wide, again, 1, bias=False), nn.BatchNorm2d(again)
        self.expand2, self.bn5 = nn.Conv2d(again, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)
        self.head = nn.Linear(wide, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x))
        y = F.relu(self.bn2(self.conv(F.relu(self.bn1(self.reduce(x))))))
        x = F.relu(self.bn3(self.expand(y)) + self.shortcut(x))
        x = F.relu(self.bn5(self.expand2(F.relu(self.bn4(self.reduce2(x))))) + x)
        return self.head(pooled(x))


@network(image(), stream=Size(4, "stem.weight"), hidden=Size(8, "expand.weight"))
class InvertedResidual(nn.Module):
    def __init__(self, stream, hidden):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, stride=2, padding=1, bias=False)
        self.expand, self.bn1 = nn.Conv2d(stream, hidden, 1, bias=False), nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.project, self.bn3 = nn.Conv2d(hidden, stream, 1, bias=False), nn.BatchNorm2d(stream)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu6(self.bn2(self.depthwise(F.relu6(self.bn1(self.expand(x))))))
        return self.head(self.dropout(pooled(x + self.bn3(self.project(y)))))


@network(image(), stem=Size(4, "stem.weight"), first=Size(3, "first.weight"), second=Size(5, "second.weight"))
class DenseConcat(nn.Module):
    """Each layer reads everything before it, through a norm over the concatenation."""

    def __init__(self, stem, first, second):
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.bn1, self.first = nn.BatchNorm2d(stem), nn.Conv2d(stem, first, 3, padding=1)
        self.bn2, self.second = nn.BatchNorm2d(stem + first), nn.Conv2d(stem + first, second, 3, padding=1)
        self.bn3, self.head = nn.BatchNorm2d(stem + first + second), nn.Linear(stem + first + second, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([x, self.first(F.relu(self.bn1(x)))], dim=1)
        x = torch.cat([x, self.second(F.relu(self.bn2(x)))], dim=1)
        return self.head(pooled(torch.sigmoid(self.bn3(x))))


@network(image(), features=Size(5, "conv.weight"), inner=Size(6, "mix.weight"))
class InputConcat(nn.Module):
    """The user's own channels stand between two parts that can be cut."""

    def __init__(self, features, inner):
        super().__init__()
        self.conv = nn.Conv2d(3, features, 3, padding=1)
        self.mix = nn.Conv2d(2 * features + 3, inner, 1)
        self.out = nn.Conv2d(inner, 2, 1)

    def forward(self, x):
        y = self.conv(x)
        return self.out(F.relu(self.mix(torch.cat([F.relu(y), x, F.relu(-y)], dim=1))))


@network(image(), channels=Size(6, "conv.weight"), squeeze=Size(4, "down.weight"))
class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeeze):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.down, self.up = nn.Linear(channels, squeeze), nn.Linear(squeeze, channels)
        self.out = nn.Conv2d(channels, 2, 1)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        scale = torch.sigmoid(self.up(F.relu(self.down(x.mean(dim=(2, 3))))))
        return self.out(x * scale[:, :, None, None])


@network(image(), stream=Size(6, "stem.weight"), squeeze=Size(4, "down.weight"), inner=Size(5, "conv1.weight"))
class ConvSqueezeExcite(nn.Module):
    """Squeeze-excite by 1x1 convolutions at the end of a residual branch."""

    def __init__(self, stream, squeeze, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(stream, inner, 3, padding=1), nn.Conv2d(inner, stream, 3, padding=1)
        self.down, self.up = nn.Conv2d(stream, squeeze, 1), nn.Conv2d(squeeze, stream, 1)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = F.silu(self.stem(x))
        y = self.conv2(F.silu(self.conv1(x)))
        y = y * F.hardsigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(y, 1)))))
        return self.head(pooled(x + y))


@network(
    image(),
    high=Size(4, "encode1.weight"),
    low=Size(7, "encode2.weight"),
    rise=Size(5, "rise.weight", axis=1),
    merge=Size(6, "decode.weight"),
)
class UNet(nn.Module):
    def __init__(self, high, low, rise, merge):
        super().__init__()
        self.encode1, self.bn1 = nn.Conv2d(3, high, 3, padding=1), nn.BatchNorm2d(high)
        self.encode2, self.bn2 = nn.Conv2d(high, low, 3, padding=1), nn.BatchNorm2d(low)
        self.rise = nn.ConvTranspose2d(low, rise, 2, stride=2)
        self.decode = nn.Conv2d(rise + high, merge, 3, padding=1)
        self.out = nn.Conv2d(merge, 2, 1)

    def forward(self, x):
        skip = F.relu(self.bn1(self.encode1(x)))
        x = F.relu(self.bn2(self.encode2(F.max_pool2d(skip, 2))))
        return self.out(F.relu(self.decode(torch.cat([self.rise(x), skip], dim=1))))


@network(normal(6, 5), seed=Size(6, "project.weight", rows=16), middle=Size(4, "up1.weight", axis=1))
class Decoder(nn.Module):
    """A vector is unfolded into channels of 4x4 pixels and enlarged by transposed convolutions."""

    def __init__(self, seed, middle):
        super().__init__()
        self.project = nn.Linear(5, seed * 16)
        self.bn = nn.BatchNorm2d(seed)
        self.up1 = nn.ConvTranspose2d(seed, middle, 3, stride=2, padding=1, output_padding=1)
        self.up2 = nn.ConvTranspose2d(middle, 3, 2, stride=2, bias=False)

    def forward(self, z):
        x = F.relu(self.bn(self.project(z).view(z.shape[0], -1, 4, 4)))
        return torch.tanh(self.up2(F.leaky_relu(self.up1(x), 0.1)))


@network(normal(2, 3, 12), first=Size(5, "conv1.weight"), second=Size(6, "conv2.weight"))
class Signal1d(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.conv1, self.bn = nn.Conv1d(3, first, 3, padding=1), nn.BatchNorm1d(first)
        self.conv2 = nn.Conv1d(first, second, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose1d(second, 2, 4, stride=2, padding=1)

    def forward(self, x):
        x = F.max_pool1d(F.elu(self.bn(self.conv1(x))), 2)
        return self.up(F.softplus(self.conv2(x)))


@network(normal(2, 2, 4, 4, 4), first=Size(4, "conv1.weight"), second=Size(5, "conv2.weight"))
class Volume3d(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.conv1, self.bn = nn.Conv3d(2, first, 3, padding=1), nn.BatchNorm3d(first)
        self.conv2 = nn.Conv3d(first, second, 1)
        self.up = nn.ConvTranspose3d(second, 2, 2, stride=2)

    def forward(self, x):
        x = F.avg_pool3d(F.relu(self.bn(self.conv1(x))), 2)
        return self.up(F.relu(self.conv2(x)))


@network(image(), stream=Size(6, "stem.weight"))
class TiedModule(nn.Module):
    """One convolution and one norm run twice: both axes of the weight are the stream."""

    def __init__(self, stream):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.again, self.bn = nn.Conv2d(stream, stream, 3, padding=1), nn.BatchNorm2d(stream)
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.bn(self.again(x)))
        return self.head(pooled(F.relu(self.bn(self.again(x)))))


@network(both(image(), image(2)), shared=Size(5, "left.weight"), inner=Size(6, "trunk.weight"))
class TwoInputs(nn.Module):
    """Two inputs, two stems, one norm and one trunk for both: the stems must be cut together."""

    def __init__(self, shared, inner):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, shared, 3, padding=1), nn.Conv2d(2, shared, 3, padding=1)
        self.bn = nn.BatchNorm2d(shared)
        self.trunk = nn.Conv2d(shared, inner, 3)
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, left, right):
        left = pooled(F.relu(self.trunk(F.relu(self.bn(self.left(left))))))
        right = pooled(F.relu(self.trunk(F.relu(self.bn(self.right(right))))))
        return self.head(left) - self.head(right)


@network(
    both(image(), normal(2, 6)),
    stream=Size(5, "see.weight"),
    side=Size(4, "note.weight"),
    hidden=Size(7, "fuse.weight"),
)
class ImageAndVector(nn.Module):
    """One input is added to the stream, and again concatenated to it."""

    def __init__(self, stream, side, hidden):
        super().__init__()
        self.see, self.hear = nn.Conv2d(3, stream, 3), nn.Linear(6, stream)
        self.note = nn.Linear(6, side)
        self.fuse = nn.Linear(side + stream, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, picture, vector):
        x = F.relu(self.see(picture) + self.hear(vector)[:, :, None, None])
        x = torch.cat([torch.tanh(self.note(vector)), pooled(x)], dim=1)
        return self.head(F.relu(self.fuse(x)))


@network(
    image(),
    trunk=Size(6, "trunk.weight"),
    shown=Size(5, "show.weight", frozen="returned to the user"),
    hidden=Size(7, "hide.weight"),
)
class ManyOutputs(nn.Module):
    """A dictionary with a feature map, a pair of scores and a vector is returned."""

    def __init__(self, trunk, shown, hidden):
        super().__init__()
        self.trunk = nn.Conv2d(3, trunk, 3, padding=1)
        self.show, self.hide = nn.Conv2d(trunk, shown, 3), nn.Conv2d(trunk, hidden, 3)
        self.one, self.two = nn.Linear(hidden, 2), nn.Linear(shown, 3)

    def forward(self, x):
        x = F.relu(self.trunk(x))
        shown, hidden = F.relu(self.show(x)), pooled(F.relu(self.hide(x)))
        return {"features": shown, "scores": (self.one(hidden), self.two(pooled(shown)))}


@network(image(), first=Size(5, "conv1.weight"), second=Size(4, "conv2.weight"), third=Size(6, "conv3.weight"))
class PaddingAndResizing(nn.Module):
    """Padding modes inside and outside the convolution, and interpolation."""

    def __init__(self, first, second, third):
        super().__init__()
        self.conv1 = nn.Conv2d(3, first, 3, padding=1, padding_mode="reflect")
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, padding_mode="circular")
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, padding_mode="replicate")
        self.out = nn.Conv2d(third, 2, 3)

    def forward(self, x):
        x = F.interpolate(F.relu(self.conv1(x)), scale_factor=2, mode="bilinear", align_corners=False)
        x = F.pad(F.relu(self.conv2(F.avg_pool2d(x, 2))), (1, 0, 2, 1))
        x = F.interpolate(x, size=(6, 6), mode="nearest")
        return self.out(F.pad(F.relu(self.conv3(x)), (1, 1, 1, 1), value=0.5))


@network(image(), channels=Size(6, "conv.weight"), inner=Size(5, "conv2.weight"))
class PReluPerChannel(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.conv, self.slope = nn.Conv2d(3, channels, 3), nn.PReLU(channels)
        self.conv2, self.shared_slope = nn.Conv2d(channels, inner, 3), nn.PReLU()
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, x):
        return self.head(pooled(self.shared_slope(self.conv2(self.slope(self.conv(x))))))


@network(image(), stream=Size(6, "stem.weight"), inner=Size(5, "conv1.weight"))
class ScaledResidual(nn.Module):
    """A scalar gain, a scale per channel and a buffer per channel on the branch of a residual."""

    def __init__(self, stream, inner):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(stream, inner, 3, padding=1), nn.Conv2d(inner, stream, 1)
        self.gain, self.unit_gain = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(1))
        self.layer_scale = nn.Parameter(torch.ones(stream))
        self.register_buffer("fixed_scale", torch.ones(1, stream, 1, 1))
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        x = self.stem(x) * self.fixed_scale
        y = self.layer_scale[:, None, None] * self.conv2(F.relu(self.conv1(x)))
        return self.head(pooled(F.relu(x + self.gain * y * self.unit_gain)))


class ResidualBlock(nn.Module):
    def __init__(self, stream, inner):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(stream, inner, 3, padding=1), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, stream, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.bn(self.conv1(x))))


@network(
    image(),
    stream=Size(5, "stem.weight"),
    inner0=Size(4, "blocks.0.conv1.weight"),
    inner1=Size(6, "blocks.1.conv1.weight"),
    inner2=Size(4, "blocks.2.conv1.weight"),
    depth=Size(3, "blocks.{}.", kind="layer"),
)
class ResidualStack(nn.Module):
    """Three residual blocks that can be dropped from the last to the second."""

    def __init__(self, stream, inner0, inner1, inner2, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.blocks = nn.Sequential(*[ResidualBlock(stream, inner) for inner in (inner0, inner1, inner2)[:depth]])
        self.head = nn.Linear(stream, CLASSES)

    def forward(self, x):
        return self.head(pooled(F.relu(self.blocks(F.relu(self.stem(x))))))
