"""How far exported files are from torch: small networks of every kind, at two uniform cuts and a searched one.

Each file is opened in its own runtime, and runs at batches of 1, 2 and 64 on inputs that are not the example. A line
has the largest difference between its answers and torch's, as a share of the largest answer. The searched cut is
the one nearest to half of the multiply-adds on the curve of ``nestling.search``, whose data are random. With ``--out``
lines are added to a file, and a run goes on where the one before it ended; runtimes, and timm, are left out where they
are not installed.
"""

import argparse
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import report
from torch import Tensor, nn
from without_torchvision import stand_in_for_torchvision

import nestling as nl

SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "executorch": ".pte"}
BUILT: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "lenet_5_caffe": ({}, (1, 28, 28)),
    "vgg11": ({"width": 0.25}, (3, 32, 32)),
    "mobilenet_v2": ({"width": 0.25}, (3, 32, 32)),
    "resnext_cifar": ({"width": 0.125, "base_width": 32, "stream": 0.25}, (3, 32, 32)),
    "unet": ({"width": 0.125, "out_channels": 2}, (1, 32, 32)),
}
CUTS = ("0.5", "0.25", "searched")


class Logits(nn.Module):
    """A network of Hugging Face transformers, which takes an image and gives logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        logits: Tensor = self.network(pixel_values=images).logits
        return logits


def vision_transformer() -> nn.Module:
    """A small ViT."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 96, "image_size": 32, "patch_size": 8, "num_labels": 10}
    return Logits(ViTForImageClassification(ViTConfig(**sizes)))


def convnext() -> nn.Module:
    """A small ConvNeXt."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes: dict[str, Any] = {"num_stages": 2, "hidden_sizes": [24, 48], "depths": [1, 2], "num_labels": 10}
    return Logits(ConvNextForImageClassification(ConvNextConfig(**sizes)))


def resnet_of_timm() -> nn.Module:
    """A small ResNet of timm, which imports torchvision and calls nothing of it."""
    stand_in_for_torchvision()
    timm = importlib.import_module("timm")
    network: nn.Module = timm.create_model("resnet10t", pretrained=False, num_classes=10)
    return network


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vit (transformers)": (vision_transformer, (3, 32, 32)),
    "convnext (transformers)": (convnext, (3, 32, 32)),
}
if importlib.util.find_spec("timm") is not None:
    OTHERS["resnet10t (timm)"] = resnet_of_timm, (3, 32, 32)


def nested_network(name: str) -> tuple[nl.Nested, tuple[int, ...]]:
    """A network with norms that have been used, nested in four blocks, and the shape of its inputs."""
    torch.manual_seed(0)
    if name in BUILT:
        options, shape = BUILT[name]
        net = nl.models.build(name, **options)
    else:
        make, shape = OTHERS[name]
        net = make()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.3)
    example = torch.randn(2, *shape)
    return nl.nest(net.eval(), example, weights=None, order="uniform", num_blocks=4, num_always=1).eval(), shape


def cut_of(nested: nl.Nested, shape: tuple[int, ...], name: str) -> float | nl.Cut:
    """A share of every group, or the searched network that is nearest to half of the whole one's multiply-adds."""
    if name != "searched":
        return float(name)
    with torch.no_grad():
        outputs = nested(torch.randn(16, *shape))
    batches = [(torch.randn(16, *shape), torch.randint(outputs.shape[1], (16, *outputs.shape[2:]))) for _ in range(2)]
    curve = nl.search(nested, batches, strategy="beam", num_points=8, num_kept=1, num_candidates=4)
    uneven = [row for row in curve.rows if not is_uniform(nested, row.cut)]
    return min(uneven, key=lambda row: abs(row.macs - curve.rows[-1].macs / 2)).cut


def is_uniform(nested: nl.Nested, cut: nl.Cut) -> bool:
    """Whether every group that can be cut keeps the same share."""
    widths = dict(cut.widths)
    return len({widths[group.name] / group.num_blocks for group in nested.groups.free}) == 1


def differences(done: set[tuple[str, str, str]]) -> Iterator[dict[str, object]]:
    """A line per network, cut and format that is not done."""
    for name in (*BUILT, *OTHERS):
        rows = [(cut, to) for to in SUFFIXES for cut in CUTS if (name, cut, to) not in done]
        if not rows:
            continue
        nested, shape = nested_network(name)
        cuts = {cut: cut_of(nested, shape, cut) for cut in CUTS}
        for cut, to in rows:
            line: dict[str, object] = {"network": name, "cut": cut, "to": to}
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"network{SUFFIXES[to]}"
                try:
                    made = nl.export(nested, path, cut=cuts[cut], to=to, compare=False)
                except nl.NestlingError as error:
                    if "is not installed" in str(error):
                        continue
                    line["refused"] = str(error)
                else:
                    line |= {"kept": round(made.about["kept"], 3), "difference": float(f"{made.difference:.2g}")}
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    text = asked.out.read_text() if asked.out is not None and asked.out.exists() else ""
    found_before: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    lines = [line for line in found_before if "difference" in line]
    for line in differences({(line["network"], line["cut"], line["to"]) for line in lines}):
        lines.append(line)
        if asked.out is not None:
            with asked.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    for to in SUFFIXES:
        own = [line for line in lines if line["to"] == to]
        found = {f"{line['network']} at {line['cut']}": line.get("difference", "refused") for line in own}
        report(f"the largest difference from torch, {to}", **found)


if __name__ == "__main__":
    main()
