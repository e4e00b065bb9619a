"""From a network and a folder of images (folder/<class>/<image>) of your own to an ONNX file of a small network."""

from pathlib import Path

import torch
import tyro
from torch import nn
from tyro.conf import Positional

import nestling as nl


def cnn(channels: int, num_classes: int) -> nn.Module:
    """Any nn.Module of yours."""
    layers: list[nn.Module] = []
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def main(
    images: Positional[Path], out: Path = Path("runs/own_images"), size: int = 32, epochs: int = 20, share: float = 0.5
) -> None:
    """Train on the images, resized to size x size, and write the best network with that share of multiply-adds."""
    data = nl.data.load(images, resize=size, augment="crop")
    number, classes = len(data.split("train")), ", ".join(data.classes)
    print(f"{number} training images of the classes {classes}; {len(data.skipped)} other files skipped")

    torch.manual_seed(0)
    channels = data.input_shape[0]  # 1 if all images are grey, else 3
    nested = nl.nest(cnn(channels, data.num_outputs), torch.zeros(2, *data.input_shape), num_blocks=8)
    nl.train(nested, data, nl.Recipe(epochs=epochs, batch_size=32), out=out, quiet=True)

    training = data.batches("train", 256, shuffle=True, augment=data.augment)
    curve = nl.search(nested, data.batches("validation", 256), "macs", recalibration=training)
    cut = curve.under(macs=share * nl.cost(nested, 1.0).macs)
    nl.recalibrate(nested, training, cut)
    for name, scored in (("whole network", 1.0), ("chosen cut", cut)):
        scores = nl.evaluate(nested, data.batches("test", 256), cut=scored, samples=0)
        macs = nl.cost(nested, scored).macs
        print(f"{name}: {macs:,} multiply-adds, accuracy {scores.accuracy:.1%}, ECE {scores.ece:.1%}")

    file = nl.export(nested, out / "small.onnx", cut=cut, data=data).files[0]  # compared with torch before it is there
    network, test = nl.runtime.open(file), data.split("test")  # needs numpy and onnxruntime alone
    answers = network.predict(test.inputs.numpy())  # bytes, as in the files: the network knows mean and std
    right = answers.probs.argmax(1) == test.targets.numpy()
    print(f"{file}: accuracy {right.mean():.1%}")


if __name__ == "__main__":
    tyro.cli(main)
