"""Small networks with real noise for the tests of uncertainty in files, and files of graphs."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import torch
from torch import nn

import nestling as nl
from nestling.delivery.formats import Graph
from nestling.running.layers import VariationalLayer


class Residual(nn.Module):
    """A stem, a strided residual layer with a projection, and a mean over positions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.shortcut = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.shortcut(x) + self.second(self.first(x)))
        return self.head(x.mean((2, 3)))


def _vgg():
    """Convolutions below and above the number of channels from which variances are taken apart."""
    layers = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def _lenet():
    layers = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 4))


def _mask():
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 6, 2, stride=2), nn.ReLU(), nn.Conv2d(6, 3, 1))


def _mlp(outputs):
    layers = [nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(12, outputs))


NETWORKS = {
    "vgg": (_vgg, (3, 8, 8)),
    "lenet": (_lenet, (1, 14, 14)),
    "residual": (Residual, (3, 8, 8)),
    "mask": (_mask, (1, 6, 6)),
    "mlp": (lambda: _mlp(4), (2, 3)),
    "numbers": (lambda: _mlp(2), (2, 3)),
}


def nested_of(name: str, weights: str = "gaussian", **options) -> nl.Nested:
    """A nested network with random norms and a good deal of noise."""
    torch.manual_seed(0)
    make, size = NETWORKS[name]
    net = make()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.7, 1.5)
            norm.bias.data.normal_(0, 0.3)
    for weight in (parameter for parameter in net.parameters() if parameter.ndim > 1):
        weight.data = 2 * weight.data + 0.6 * weight.data.std()  # so that what a layer draws moves outputs together
    nested = nl.nest(net.eval(), torch.randn(2, *size), weights=weights, num_blocks=4, **options).eval()
    with torch.no_grad():
        for layer in nested.modules():
            if isinstance(layer, VariationalLayer):
                layer.posterior.scale.add_(0.5 + torch.rand_like(layer.posterior.scale))
    if name == "numbers":
        nested.likelihood = nl.prediction.Gaussian(std=0.3, center=[1.0, -2.0], scale=[2.0, 0.5])
    return nested


def inputs_of(name: str, batch: int) -> torch.Tensor:
    return torch.randn(batch, *NETWORKS[name][1], generator=torch.Generator().manual_seed(batch))


def write_onnx(graph: Graph, path: Path) -> onnx.ModelProto:
    """Write a graph with its open axes, and give what was written."""
    examples = tuple(port.example for port in graph.inputs)
    shapes = tuple(dict(port.open_axes) for port in graph.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.module,
            examples,
            path,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            input_names=[port.name for port in graph.inputs],
            output_names=list(graph.outputs),
        )
    return onnx.load(path)


def run_onnx(path: Path, **arrays: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, arrays)


def compiled_by_openvino(path: Path, **options: object) -> openvino.CompiledModel:
    """A file in OpenVINO, in single precision: by itself it takes bfloat16 where a processor has it."""
    return openvino.compile_model(openvino.convert_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"} | options)


def operations(model: onnx.ModelProto) -> set[str]:
    """The operations of a file, those of its functions and branches among them."""
    found, waiting = set(), [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        found.add(node.op_type)
        waiting += [inner for attribute in node.attribute for inner in attribute.g.node]
    return found


def is_random(operation: str) -> bool:
    return operation.startswith("Random") or operation in {"Bernoulli", "Multinomial", "Dropout"}
