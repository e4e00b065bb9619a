"""Small graphs to export, made by hand, and the comparison of a file's answers with torch's."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nestling.delivery.formats import FileFormat, Graph, Port
from nestling.runtime import Session

ABOUT = {"classes": ["Äpfel", '<pears> & "plums"'], "cut": {"0": 3}, "temperature": 1.25, "none": None}


class SmallNet(nn.Module):
    """A convolution, a norm with statistics that are not one and zero, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        for tensor in (self.norm.weight, self.norm.bias, self.norm.running_mean):
            nn.init.normal_(tensor)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        self.eval()

    def forward(self, images: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.norm(self.convolution(images.float() / 255)).relu().mean((2, 3))
        logits = self.head(hidden) * scale.mean()
        return logits.softmax(1), hidden


def small_graph() -> Graph:
    """A graph with bytes as images, an open batch and another open size."""
    torch.manual_seed(1)
    images = Port("images", torch.randint(0, 256, (2, 3, 6, 5), dtype=torch.uint8), {0: "batch"})
    scale = Port("scale", torch.rand(3), {0: "samples"})
    return Graph(SmallNet(), (images, scale), ("probs", "hidden"), ABOUT)


def arrays_of(graph: Graph, batch: int, samples: int) -> dict[str, np.ndarray]:
    """Inputs that are not the example."""
    generator = np.random.default_rng(batch)
    images = generator.integers(0, 256, (batch, *graph.inputs[0].example.shape[1:]), dtype=np.uint8)
    return {"images": images, "scale": generator.random(samples, dtype=np.float32)}


def largest_gap(session: Session, graph: Graph, batch: int, samples: int) -> float:
    """The largest difference between the answers of a file and torch's."""
    arrays = arrays_of(graph, batch, samples)
    answers = session.run(arrays)
    with torch.no_grad():
        expected = graph.module(*(torch.from_numpy(arrays[port.name]) for port in graph.inputs))
    assert tuple(answers) == graph.outputs
    return max(float(np.abs(answers[n] - e.numpy()).max()) for n, e in zip(graph.outputs, expected, strict=True))


def written(form: FileFormat, graph: Graph, folder: Path) -> Path:
    """The main file of a graph; every file that the format names is there, and no other."""
    files = form.write(graph, folder / f"small{form.suffix}")
    assert sorted(folder.iterdir()) == sorted(files)
    assert files[0].name == f"small{form.suffix}"
    return files[0]
