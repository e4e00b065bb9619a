"""Every kind of network as an ONNX file, at uniform and other cuts, against torch, in ONNX Runtime by itself."""

import random
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import nestling as nl

sys.path.insert(0, str(Path(__file__).parents[1] / "network"))
from oracle import randomise
from zoo_attention import VisionTransformer

from effort import SOAK

NETWORKS = {
    "lenet_5_caffe": ({"width": 0.25}, (1, 28, 28)),
    "vgg11": ({"width": 0.125}, (3, 32, 32)),
    "mobilenet_v2": ({"width": 0.125}, (3, 16, 16)),
    "resnext_cifar": ({"width": 0.1}, (3, 8, 8)),
    "unet": ({"width": 0.125, "out_channels": 2}, (1, 16, 16)),
}
CUTS = (0.5, 0.25, "uneven")
CASES = [(name, cut) for name in (*NETWORKS, "vit", "encoder") for cut in CUTS]
FEW = [("lenet_5_caffe", cut) for cut in CUTS] + [(name, "uneven") for name in (*NETWORKS, "vit", "encoder")][1:]


class Encoder(nn.Module):
    """Torch's own transformer over the rows of an image, whose attention has a fused kernel in eval mode."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.stem, self.encoder, self.head = nn.Linear(6, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 4)

    def forward(self, rows):
        return self.head(self.encoder(self.stem(rows)).mean(1))


@cache
def nested_network(name):
    torch.manual_seed(0)
    if name in NETWORKS:
        options, shape = NETWORKS[name]
        module = nl.models.build(name, **options)
    else:
        module, shape = (VisionTransformer(8, 4, 7), (4, 6)) if name == "vit" else (Encoder(), (5, 6))
    randomise(module, torch.Generator().manual_seed(1)).float()
    return nl.nest(module, torch.randn(2, *shape), order="uniform", weights=None, num_blocks=4, num_always=1).eval()


def cut_of(nested, cut):
    chance, uneven = random.Random(2), {}
    while len(set(uneven.values())) < 2:
        uneven = {group.name: chance.randint(group.num_always, group.num_blocks) for group in nested.groups.free}
    return uneven if cut == "uneven" else cut


@pytest.mark.parametrize(("name", "cut"), CASES if SOAK else [("lenet_5_caffe", "uneven"), ("encoder", 0.5)])
def test_openvino_answers_what_the_network_does_at_the_cut(name, cut, tmp_path):
    pytest.importorskip("openvino")
    nested, wanted = nested_network(name), cut_of(nested_network(name), cut)
    nl.export(nested, tmp_path / "network.xml", cut=wanted, to="openvino", compare=False)
    x = torch.randn(5, *nested.example[0][0].shape[1:])
    with torch.no_grad(), nested.at(wanted):
        expected = nested(x).numpy()
    found = nl.runtime.open(tmp_path / "network.xml").predict(x.numpy())["output"]
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "cut"), CASES if SOAK else FEW)
def test_a_file_answers_what_the_network_does_at_the_cut(name, cut, tmp_path):
    nested = nested_network(name)
    wanted = cut_of(nested, cut)
    made = nl.export(nested, tmp_path / "network.onnx", cut=wanted, compare=False)
    assert made.difference < 1e-4
    assert made.bytes == (tmp_path / "network.onnx").stat().st_size
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    (port,) = session.get_inputs()
    for batch in (1, 5):
        x = torch.randn(batch, *nested.example[0][0].shape[1:])
        with torch.no_grad(), nested.at(wanted):
            expected = nested(x).numpy()
        (found,) = session.run(None, {port.name: x.numpy()})
        assert np.abs(expected).max() > 1e-3
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
